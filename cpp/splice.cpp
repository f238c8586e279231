// Sorted columns with some rows taken out and new rows put in: one pass, mostly long copies.

#include "splice.h"

#include <cstring>
#include <stdexcept>

namespace {

// Calls copy(first, last) for runs of kept base rows and insert(i) for each new row, in the order of
// the result. New row i stands before base row places[i].
template <typename Copy, typename Insert>
void walk(In1<bool> kept, In1<int64_t> places, const Copy& copy, const Insert& insert) {
    const bool* flags = kept.data();
    const size_t size = kept.shape(0);
    size_t at = 0;
    auto copy_to = [&](size_t end) {
        while (at < end) {
            if (!flags[at]) {
                ++at;
                continue;
            }
            const void* gap = std::memchr(flags + at, 0, end - at);
            const size_t last = gap ? static_cast<size_t>(static_cast<const bool*>(gap) - flags) : end;
            copy(at, last);
            at = last;
        }
    };
    for (size_t i = 0; i < places.shape(0); ++i) {
        const int64_t place = places.data()[i];
        if (place < static_cast<int64_t>(at) || place > static_cast<int64_t>(size))
            throw std::invalid_argument("places must ascend and lie in the base");
        copy_to(static_cast<size_t>(place));
        insert(i);
    }
    copy_to(size);
}

size_t result_size(In1<bool> kept, In1<int64_t> places) {
    size_t size = places.shape(0);
    for (size_t i = 0; i < kept.shape(0); ++i) size += kept.data()[i];
    return size;
}

Out2<uint8_t> splice(In2<uint8_t> base, In2<uint8_t> added, In1<bool> kept, In1<int64_t> places) {
    const size_t width = base.shape(1);
    if (added.shape(1) != width || kept.shape(0) != base.shape(0) ||
        places.shape(0) != added.shape(0))
        throw std::invalid_argument("base and new rows must be equally wide, with a place for each");
    std::vector<uint8_t> rows;
    size_t size;
    {
        nb::gil_scoped_release release;
        size = result_size(kept, places);
        rows.resize(size * width);
        uint8_t* to = rows.data();
        walk(
            kept, places,
            [&](size_t first, size_t last) {
                std::memcpy(to, base.data() + first * width, (last - first) * width);
                to += (last - first) * width;
            },
            [&](size_t i) {
                std::memcpy(to, added.data() + i * width, width);
                to += width;
            });
    }
    return to_numpy(std::move(rows), size, width);
}

template <typename Position>
nb::tuple positions_as(In1<bool> kept, In1<int64_t> places) {
    std::vector<Position> of_base(kept.shape(0), -1);
    std::vector<int64_t> of_new(places.shape(0));
    {
        nb::gil_scoped_release release;
        Position next = 0;
        walk(
            kept, places,
            [&](size_t first, size_t last) {
                for (size_t i = first; i < last; ++i) of_base[i] = next++;
            },
            [&](size_t i) { of_new[i] = next++; });
    }
    return nb::make_tuple(to_numpy(std::move(of_base)), to_numpy(std::move(of_new)));
}

// (positions of the base's rows in the result, -1 for those that left; int64 those of the new rows)
nb::tuple spliced_positions(In1<bool> kept, In1<int64_t> places) {
    return result_size(kept, places) <= INT32_MAX ? positions_as<int32_t>(kept, places)
                                                  : positions_as<int64_t>(kept, places);
}

}  // namespace

void bind_splice(nb::module_& module) {
    module.def("splice", &splice, nb::arg("base"), nb::arg("added"), nb::arg("kept"),
               nb::arg("places"),
               "uint8 [rows, width]: the kept base rows, with new row i before base row places[i].");
    module.def("spliced_positions", &spliced_positions, nb::arg("kept"), nb::arg("places"),
               "(where each base row went, int32 or int64, -1 if it left; int64 where each new row "
               "went)");
}
