// log(sum(exp(x))) of float32 rows in float64, one pass over the row for the maximum and one for the
// sum. Accurate to a few units of the last float64 place, like torch.logsumexp on a float64 copy,
// without making the copy.

#include "logsumexp.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "vectors.h"

namespace {

// Enough independent sums to fill two vectors of eight doubles; a fixed number, so that the order of
// additions, and with it the result, does not depend on the vector width.
constexpr size_t kLanes = 16;

// e^x for x <= 0, to about one unit of the last place; below -708 the result is a tiny positive
// number, which vanishes beside the 1 that the row's maximum adds.
inline double exp_nonpositive(double x) {
    constexpr double kLog2E = 1.4426950408889634074;
    constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
    constexpr double kRounder = 0x1.8p52;  // adding it rounds to an integer, left in the low bits
    x = x < -708.0 ? -708.0 : x;
    const double rounded = x * kLog2E + kRounder;
    const double k = rounded - kRounder;
    const double r = (x - k * kLn2High) - k * kLn2Low;  // |r| <= ln(2) / 2
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const uint64_t exponent = std::bit_cast<uint64_t>(rounded) + 1023;
    return p * std::bit_cast<double>(exponent << 52);
}

GRACE_WIDEST_VECTORS
void logsumexp_rows(const float* x, size_t rows, size_t columns, double* result) {
    for (size_t row = 0; row < rows; ++row, x += columns) {
        float maxima[kLanes];
        int32_t nans[kLanes] = {};
        std::fill_n(maxima, kLanes, -std::numeric_limits<float>::infinity());
        const size_t whole = columns - columns % kLanes;
        for (size_t i = 0; i < whole; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) {
                const float value = x[i + lane];
                maxima[lane] = value > maxima[lane] ? value : maxima[lane];
                nans[lane] |= value != value;
            }
        for (size_t i = whole, lane = 0; i < columns; ++i, ++lane) {
            maxima[lane] = x[i] > maxima[lane] ? x[i] : maxima[lane];
            nans[lane] |= x[i] != x[i];
        }
        const float largest = *std::max_element(maxima, maxima + kLanes);
        const bool any_nan = std::any_of(nans, nans + kLanes, [](int32_t nan) { return nan != 0; });
        if (any_nan || std::isinf(largest)) {
            result[row] = any_nan ? std::numeric_limits<double>::quiet_NaN() : largest;
            continue;
        }
        const double shift = largest;
        double sums[kLanes] = {};
        for (size_t i = 0; i < whole; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane)
                sums[lane] += exp_nonpositive(static_cast<double>(x[i + lane]) - shift);
        for (size_t i = whole, lane = 0; i < columns; ++i, ++lane)
            sums[lane] += exp_nonpositive(static_cast<double>(x[i]) - shift);
        double sum = 0;
        for (double part : sums) sum += part;
        result[row] = shift + std::log(sum);
    }
}

Out1<double> logsumexp(In2<float> x) {
    std::vector<double> result(x.shape(0));
    {
        nb::gil_scoped_release release;
        logsumexp_rows(x.data(), x.shape(0), x.shape(1), result.data());
    }
    return to_numpy(std::move(result));
}

}  // namespace

void bind_logsumexp(nb::module_& module) { module.def("logsumexp", &logsumexp, nb::arg("x")); }
