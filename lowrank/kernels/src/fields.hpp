// Numbers in delimited text in the plain form that programs write.

#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace lowrank::fields {

// A column to read, counted from 0, and the array to read it into.
struct Column {
    int place;
    std::int64_t* integers;
    float* numbers;
};

inline bool is_digit(char letter) { return static_cast<unsigned char>(letter - '0') < 10; }

// Reads an integer of up to 18 digits in canonical form: 7, not 007, +7 or -0.
inline bool read(const char*& p, const char* end, std::int64_t& value) {
    const bool is_negative = p < end && *p == '-';
    const char* first = p += is_negative;
    std::int64_t digits = 0;
    for (; p < end && is_digit(*p) && p - first < 19; ++p) digits = 10 * digits + (*p - '0');
    value = is_negative ? -digits : digits;
    return p > first && p - first < 19 && (*first != '0' || (p - first == 1 && !is_negative));
}

// Reads a number of up to 15 digits without an exponent, correctly rounded: the digits and a power of ten are exact
// doubles, whose quotient is rounded once. Rounding it to a float is correct unless it is half-way between two floats.
inline bool read(const char*& p, const char* end, float& value) {
    static constexpr double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14};
    const bool is_negative = p < end && *p == '-';
    const char* first = p += is_negative;
    std::int64_t digits = 0, decimals = 0;
    for (; p < end && is_digit(*p) && p - first < 16; ++p) digits = 10 * digits + (*p - '0');
    const std::int64_t before = p - first;
    if (p < end && *p == '.')
        for (++p; p < end && is_digit(*p) && decimals < 15; ++p, ++decimals) digits = 10 * digits + (*p - '0');
    if (before == 0 || before + decimals > 15 || p[-1] == '.') return false;
    const double wide = static_cast<double>(digits) / powers[decimals];
    value = static_cast<float>(is_negative ? -wide : wide);
    constexpr std::uint64_t half = std::uint64_t{1} << 28;
    return (std::bit_cast<std::uint64_t>(wide) & (2 * half - 1)) != half;
}

// Reads rows of `width` fields, separated by `step` marks; skips blank rows. Returns the number of rows, or -1 if the
// text is not plain: a number has another form, a row another width, or the text quotes or characters outside ASCII.
inline std::int64_t read_rows(const char* p, const char* end, char mark, int step, int width,
                              const std::vector<Column>& columns, std::int64_t room) {
    std::int64_t row = 0;
    while (p < end) {
        if (const char* stop = p + (*p == '\r'); stop < end && *stop == '\n') {
            p = stop + 1;
            continue;
        }
        if (row == room) return -1;
        auto column = columns.begin();
        for (int field = 0; field < width; ++field) {
            for (int i = 0; field > 0 && i < step; ++i, ++p)
                if (p == end || *p != mark) return -1;
            if (column == columns.end() || column->place != field) {
                for (; p < end && *p != mark && *p != '\n'; ++p)
                    if (*p == '"' || static_cast<signed char>(*p) < 0) return -1;
                continue;
            }
            if (column->integers ? !read(p, end, column->integers[row]) : !read(p, end, column->numbers[row])) return -1;
            ++column;
        }
        if (p < end && *p == '\r') ++p;
        if (p < end && *p++ != '\n') return -1;
        ++row;
    }
    return row;
}

}  // namespace lowrank::fields
