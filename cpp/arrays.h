// Array types shared by the bindings: C-contiguous, on the CPU, of one exact dtype.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace nb = nanobind;

template <typename T>
using In1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using In2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using In3 = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <typename T>
using Out2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

// Hands a vector's memory to numpy, which frees it.
template <typename T>
Out1<T> to_numpy(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Out1<T>(owned->data(), {owned->size()}, owner);
}

template <typename T>
Out2<T> to_numpy(std::vector<T>&& values, size_t rows, size_t columns) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Out2<T>(owned->data(), {rows, columns}, owner);
}
