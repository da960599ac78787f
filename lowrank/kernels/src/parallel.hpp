// Threads that are started for one call and joined before it returns, without state between calls.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace lowrank {

// Runs body(thread_number) on `threads` threads, including the caller's; rethrows an exception of any of them. If the
// system cannot start all threads, the caller does the work of the others.
template <class Body>
void on_threads(int threads, const Body& body) {
    std::exception_ptr failure;
    std::mutex guard;
    const auto run = [&](int number) {
        try {
            body(number);
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::jthread> others;
    others.reserve(threads - 1);
    int started = 1;
    try {
        for (; started < threads; ++started) others.emplace_back(run, started);
    } catch (const std::system_error&) {
    }
    run(0);
    for (int number = started; number < threads; ++number) run(number);
    others.clear();
    if (failure) std::rethrow_exception(failure);
}

// A queue of ranges of rows with about equal numbers of non-zeros, which differ widely between rows of real data. Each
// range is a multiple of `step` rows, except the last.
class RowQueue {
public:
    RowQueue(const std::int64_t* indptr, std::int64_t n_rows, std::int64_t step, int threads)
        : indptr_(indptr), n_rows_(n_rows), step_(step) {
        share_ = total(indptr, n_rows) / (threads == 1 ? 1 : threads * 64) + 1;
    }

    static std::int64_t total(const std::int64_t* indptr, std::int64_t n_rows) {
        return indptr[n_rows] + n_rows * row_cost;
    }

    bool next(std::int64_t& begin, std::int64_t& end) {
        const std::lock_guard lock(guard_);
        begin = end = next_;
        while (end < n_rows_ && cost(begin, end) < share_) end = std::min(end + step_, n_rows_);
        next_ = end;
        return begin < end;
    }

private:
    static constexpr std::int64_t row_cost = 16;  // solving or storing a row, in non-zeros

    std::int64_t cost(std::int64_t begin, std::int64_t end) const {
        return indptr_[end] - indptr_[begin] + (end - begin) * row_cost;
    }

    const std::int64_t* indptr_;
    std::int64_t n_rows_, step_, share_, next_ = 0;
    std::mutex guard_;
};

struct AlignedDelete {
    void operator()(void* p) const { ::operator delete(p, std::align_val_t{64}); }
};

inline std::unique_ptr<void, AlignedDelete> aligned_memory(std::size_t bytes) {
    return std::unique_ptr<void, AlignedDelete>(::operator new(bytes, std::align_val_t{64}));
}

// Calls body(begin, end, scratch memory of the thread) on ranges of rows from a RowQueue. A little work is done by the
// caller's thread alone, because it takes less time than starting another thread, above all on a busy machine.
template <class Body>
void on_rows(const std::int64_t* indptr, std::int64_t n_rows, std::int64_t step, int threads, std::size_t scratch,
             const Body& body) {
    threads = static_cast<int>(std::min<std::int64_t>(threads, 1 + RowQueue::total(indptr, n_rows) / 512));
    RowQueue queue(indptr, n_rows, step, threads);
    on_threads(threads, [&](int) {
        const auto memory = aligned_memory(scratch);
        for (std::int64_t begin, end; queue.next(begin, end);) body(begin, end, memory.get());
    });
}

// Does the same for ranges of `step` of the numbers 0 ... n - 1, on at most as many threads as there are ranges.
template <class Body>
void on_ranges(std::int64_t n, std::int64_t step, int threads, std::size_t scratch, const Body& body) {
    std::atomic<std::int64_t> next{0};
    on_threads(static_cast<int>(std::clamp<std::int64_t>((n + step - 1) / step, 1, threads)), [&](int) {
        const auto memory = aligned_memory(scratch);
        for (std::int64_t begin; (begin = next.fetch_add(step)) < n;)
            body(begin, std::min(begin + step, n), memory.get());
    });
}

}  // namespace lowrank
