// Rows divided by their root mean square and weighed, one pass for the sum and one for the result.
// Specification: grace/kernels/rms_norm/reference.py; sums are in another order than its.

#include "rms_norm.h"

#include <cmath>

#include "vectors.h"

namespace {

constexpr size_t kLanes = 16;  // partial sums: a vector's worth, and one order on every machine

GRACE_WIDEST_VECTORS
void rms_norm_rows(const float* x, const float* weight, float eps, size_t rows, size_t columns,
                   float* out) {
    const size_t whole = columns - columns % kLanes;
    for (size_t row = 0; row < rows; ++row, x += columns, out += columns) {
        float sums[kLanes] = {};
        for (size_t i = 0; i < whole; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
        for (size_t i = whole; i < columns; ++i) sums[i - whole] += x[i] * x[i];
        float sum = 0;
        for (float part : sums) sum += part;
        const float scale = 1.0f / std::sqrt(sum / static_cast<float>(columns) + eps);
        for (size_t i = 0; i < columns; ++i) out[i] = x[i] * scale * weight[i];
    }
}

void rms_norm(In2<float> x, In1<float> weight, float eps,
              nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    nb::gil_scoped_release release;
    rms_norm_rows(x.data(), weight.data(), eps, x.shape(0), x.shape(1), out.data());
}

}  // namespace

void bind_rms_norm(nb::module_& module) {
    module.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"),
               nb::arg("out"));
}
