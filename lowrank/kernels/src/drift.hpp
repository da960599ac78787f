// Smoothing of Ornstein-Uhlenbeck processes, one for each row, from noisy observations in order of time.

#pragma once

#include "kernels.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr std::int64_t log_every = 16;  // variance ratios that are multiplied before taking a logarithm

// The process between two observations: its correlation, and the variance added in between.
template <class T>
struct DriftStep {
    double decay, gained;
    DriftStep(const DriftProblem<T>& problem, std::int64_t p)
        : decay(__builtin_exp(-static_cast<double>(problem.gaps[p]) / problem.scale)),
          gained(problem.variance * (1 - decay * decay)) {}
};

// Filters forwards; returns log p(observations) without the constant term of the noise.
template <class T>
inline double filter_drift(const DriftProblem<T>& problem, std::int64_t begin, std::int64_t end) {
    double mean = 0, variance = problem.variance, ratios = 1, evidence = 0;
    for (std::int64_t p = begin; p < end; ++p) {
        if (p > begin) {
            const DriftStep<T> step(problem, p);
            mean *= step.decay;
            variance = step.decay * step.decay * variance + step.gained;
        }
        const double total = variance + problem.noise, error = problem.data[p] - mean;
        ratios *= total / problem.noise;
        evidence -= error * error / total;
        mean += variance / total * error;
        variance *= problem.noise / total;
        if (problem.means) {
            problem.means[p] = static_cast<T>(mean);
            problem.variances[p] = static_cast<T>(variance);
        }
        if ((p - begin) % log_every == log_every - 1) {
            evidence -= __builtin_log(ratios);
            ratios = 1;
        }
    }
    return 0.5 * (evidence - __builtin_log(ratios));
}

// Smooths backwards: from posteriors given the observations so far to those given all observations.
template <class T>
inline void smooth_drift(const DriftProblem<T>& problem, std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = end - 1; p-- > begin;) {
        const DriftStep<T> step(problem, p + 1);
        const double known = problem.variances[p];
        const double expected = step.decay * step.decay * known + step.gained;
        const double gain = expected > 0 ? known * step.decay / expected : 0;
        problem.means[p] += static_cast<T>(gain * (problem.means[p + 1] - step.decay * problem.means[p]));
        problem.variances[p] += static_cast<T>(gain * gain * (problem.variances[p + 1] - expected));
    }
}

template <class T>
void drift_rows(const DriftProblem<T>& problem, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t first = problem.indptr[row], last = problem.indptr[row + 1];
        problem.evidence[row] = filter_drift(problem, first, last);
        if (problem.means) smooth_drift(problem, first, last);
    }
}

}  // namespace lowrank::LOWRANK_ISA
