// Self-attention of one new position per beam: the beam's own keys and values, and those of its
// ancestors in the rows that earlier steps left behind. Specification:
// grace/kernels/ancestor_attention/reference.py.

#include "ancestor_attention.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "vectors.h"

namespace {

constexpr size_t kLanes = 16;  // partial sums: a vector's worth, and one order on every machine

struct Shape {
    size_t rows, heads, dim, positions;
};

// For one row: a pointer to the `[3, heads, dim]` of each of its positions, the new one last.
GRACE_WIDEST_VECTORS
void attend_row(const float* const* positions, const float* bias, const Shape& shape, float* scores,
                float* out) {
    const size_t width = shape.heads * shape.dim, n = shape.positions;
    const size_t whole = shape.dim - shape.dim % kLanes;
    for (size_t head = 0; head < shape.heads; ++head) {
        const float* query = positions[n - 1] + head * shape.dim;
        float largest = -std::numeric_limits<float>::infinity();
        for (size_t j = 0; j < n; ++j) {
            const float* key = positions[j] + width + head * shape.dim;
            float sums[kLanes] = {};
            for (size_t i = 0; i < whole; i += kLanes)
                for (size_t lane = 0; lane < kLanes; ++lane)
                    sums[lane] += query[i + lane] * key[i + lane];
            for (size_t i = whole; i < shape.dim; ++i) sums[i - whole] += query[i] * key[i];
            float sum = 0;
            for (float part : sums) sum += part;
            scores[j] = sum + bias[head * n + j];
            largest = std::max(largest, scores[j]);
        }
        float total = 0;
        for (size_t j = 0; j < n; ++j) total += scores[j] = std::exp(scores[j] - largest);
        float* result = out + head * shape.dim;
        std::fill_n(result, shape.dim, 0.0f);
        for (size_t j = 0; j < n; ++j) {
            const float weight = scores[j] / total;
            const float* value = positions[j] + 2 * width + head * shape.dim;
            for (size_t i = 0; i < shape.dim; ++i) result[i] += weight * value[i];
        }
    }
}

void ancestor_attention(In2<float> own, const std::vector<In2<float>>& past,
                        const std::vector<In1<int64_t>>& ancestors, In2<float> bias,
                        nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    const size_t rows = own.shape(0), heads = bias.shape(0);
    const Shape shape{rows, heads, own.shape(1) / (3 * heads), past.size() + 1};
    for (size_t j = 0; j < past.size(); ++j)
        for (size_t row = 0; row < rows; ++row)
            if (static_cast<uint64_t>(ancestors[j].data()[row]) >= past[j].shape(0))
                throw std::invalid_argument("ancestors must be rows of past");
    nb::gil_scoped_release release;
    std::vector<const float*> positions(shape.positions);
    std::vector<float> scores(shape.positions);
    for (size_t row = 0; row < rows; ++row) {
        for (size_t j = 0; j < past.size(); ++j)
            positions[j] = past[j].data() + ancestors[j].data()[row] * past[j].shape(1);
        positions.back() = own.data() + row * own.shape(1);
        attend_row(positions.data(), bias.data(), shape, scores.data(),
                   out.data() + row * out.shape(1));
    }
}

}  // namespace

void bind_ancestor_attention(nb::module_& module) {
    module.def("ancestor_attention", &ancestor_attention, nb::arg("own"), nb::arg("past"),
               nb::arg("ancestors"), nb::arg("bias"), nb::arg("out"));
}
