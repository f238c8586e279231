// Bounds of segments, 32-bit where the last one fits and 64-bit past it.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include <variant>

#include "arrays.h"

using Offsets = std::variant<In1<int32_t>, In1<int64_t>>;

inline size_t num_segments(const Offsets& offsets) {
    return std::visit([](const auto& array) { return array.shape(0) - 1; }, offsets);
}

// Calls use(pointer), so that a loop is compiled for each width.
template <typename Use>
void with_offsets(const Offsets& offsets, const Use& use) {
    std::visit([&](const auto& array) { use(array.data()); }, offsets);
}

// Reads bounds of either width, and keeps them alive; for code in which the width decides nothing else.
class OffsetReader {
public:
    explicit OffsetReader(const Offsets& offsets) : offsets_(offsets) {
        if (const auto* narrow = std::get_if<In1<int32_t>>(&offsets_))
            narrow_ = narrow->data();
        else
            wide_ = std::get<In1<int64_t>>(offsets_).data();
    }

    int64_t operator[](size_t i) const { return narrow_ ? narrow_[i] : wide_[i]; }
    size_t num_segments() const { return ::num_segments(offsets_); }

private:
    Offsets offsets_;
    const int32_t* narrow_ = nullptr;
    const int64_t* wide_ = nullptr;
};
