// CSR bounds of either width: 32-bit where the last one fits, else 64-bit.
#pragma once

#include <stdexcept>

#include "arrays.h"

using Array = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Calls use(pointer), so that a loop is compiled for each width.
template <typename Use>
void with_offsets(const Array& offsets, const Use& use) {
    if (offsets.dtype() == nb::dtype<int32_t>())
        use(static_cast<const int32_t*>(offsets.data()));
    else if (offsets.dtype() == nb::dtype<int64_t>())
        use(static_cast<const int64_t*>(offsets.data()));
    else
        throw std::invalid_argument("offsets must be int32 or int64");
}

// The same behind one type, where a branch per access does not matter.
class Offsets {
public:
    explicit Offsets(Array offsets) : array_(offsets), size_(offsets.shape(0)) {
        with_offsets(array_, [this](const auto* bounds) { set(bounds); });
    }
    int64_t operator[](int64_t i) const { return narrow_ ? narrow_[i] : wide_[i]; }
    size_t size() const { return size_; }

private:
    void set(const int32_t* bounds) { narrow_ = bounds; }
    void set(const int64_t* bounds) { wide_ = bounds; }

    Array array_;
    size_t size_;
    const int32_t* narrow_ = nullptr;
    const int64_t* wide_ = nullptr;
};
