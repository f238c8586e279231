// Orders for the builder: ads by (SID, id), ids and hashes ascending. All stable, none depends on
// the number of workers.

#include "sort.h"

#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>

#include "radix.h"

namespace {

constexpr size_t kMostRows = UINT32_MAX;

std::vector<uint32_t> identity(size_t size) {
    if (size > kMostRows)
        throw std::invalid_argument("at most 4,294,967,295 ads fit in one index, got " +
                                    std::to_string(size) + "; split the catalogue");
    std::vector<uint32_t> positions(size);
    std::iota(positions.begin(), positions.end(), 0u);
    return positions;
}

// Positions of [N, L] tokens in lexicographic order. Neighbouring levels share one 64-bit key as far
// as their bits allow, so that SIDs such as 4 tokens below 512 take one sort.
std::vector<uint32_t> order_of_sids(In2<int32_t> sids, int workers) {
    const size_t size = sids.shape(0), levels = sids.shape(1);
    std::vector<int> bits(levels, 0);
    std::vector<int32_t> largest(levels, 0);
    for (size_t i = 0; i < size; ++i)
        for (size_t level = 0; level < levels; ++level)
            largest[level] = std::max(largest[level], sids.data()[i * levels + level]);
    for (size_t level = 0; level < levels; ++level)
        bits[level] = std::bit_width(static_cast<uint32_t>(largest[level]));
    std::vector<uint32_t> order = identity(size);
    std::vector<uint64_t> keys(size);
    for (size_t last = levels; last > 0;) {
        size_t first = last;
        int width = 0;
        while (first > 0 && width + bits[first - 1] <= 64) width += bits[--first];
        over_range(size, workers, [&](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i) {
                const int32_t* sid = sids.data() + size_t{order[i]} * levels;
                uint64_t key = 0;
                for (size_t level = first; level < last; ++level)
                    key = key << bits[level] | static_cast<uint32_t>(sid[level]);
                keys[i] = key;
            }
        });
        radix_sort(keys, order, width, workers);
        last = first;
    }
    return order;
}

// Puts the ads of each SID in id order.
template <typename Less>
void order_within_sids(std::vector<uint32_t>& order, In2<int32_t> sids, const Less& less) {
    const size_t levels = sids.shape(1);
    auto same = [&](uint32_t a, uint32_t b) {
        return std::equal(sids.data() + a * levels, sids.data() + a * levels + levels,
                          sids.data() + b * levels);
    };
    for (size_t first = 0; first < order.size();) {
        size_t last = first + 1;
        while (last < order.size() && same(order[first], order[last])) ++last;
        if (last - first > 1) std::sort(order.begin() + first, order.begin() + last, less);
        first = last;
    }
}

Out1<uint32_t> sort_by_integer_id(In2<int32_t> sids, In1<int64_t> ids, int workers) {
    std::vector<uint32_t> order;
    {
        nb::gil_scoped_release release;
        order = order_of_sids(sids, workers);
        order_within_sids(order, sids,
                          [&](uint32_t a, uint32_t b) { return ids.data()[a] < ids.data()[b]; });
    }
    return to_numpy(std::move(order));
}

Out1<uint32_t> sort_by_text_id(In2<int32_t> sids, In1<uint8_t> text, In1<int64_t> offsets,
                               int workers) {
    std::vector<uint32_t> order;
    {
        nb::gil_scoped_release release;
        auto id = [&](uint32_t i) {
            const int64_t first = offsets.data()[i], last = offsets.data()[i + 1];
            return std::string_view(reinterpret_cast<const char*>(text.data()) + first,
                                    static_cast<size_t>(last - first));
        };
        order = order_of_sids(sids, workers);
        order_within_sids(order, sids, [&](uint32_t a, uint32_t b) { return id(a) < id(b); });
    }
    return to_numpy(std::move(order));
}

// Positions of signed 64-bit values in ascending order, equal ones as they came.
Out1<uint32_t> argsort(In1<int64_t> values, int workers) {
    std::vector<uint32_t> order;
    {
        nb::gil_scoped_release release;
        const size_t size = values.shape(0);
        order = identity(size);
        const auto [low, high] = std::minmax_element(values.data(), values.data() + size);
        if (size > 0) {
            // Unsigned distance from the least value: no sign, and no more bits than the span needs.
            const uint64_t least = static_cast<uint64_t>(*low);
            std::vector<uint64_t> keys(size);
            for (size_t i = 0; i < size; ++i)
                keys[i] = static_cast<uint64_t>(values.data()[i]) - least;
            radix_sort(keys, order, std::bit_width(static_cast<uint64_t>(*high) - least), workers);
        }
    }
    return to_numpy(std::move(order));
}

}  // namespace

void bind_sort(nb::module_& module) {
    module.def("sort_by_integer_id", &sort_by_integer_id, nb::arg("sids"), nb::arg("ids"),
               nb::arg("workers"), "uint32 [N]: rows of `sids` by (SID, id).");
    module.def("sort_by_text_id", &sort_by_text_id, nb::arg("sids"), nb::arg("text"),
               nb::arg("offsets"), nb::arg("workers"),
               "uint32 [N]: rows of `sids` by (SID, id as UTF-8 bytes).");
    module.def("argsort", &argsort, nb::arg("values"), nb::arg("workers"),
               "uint32 [N]: positions of int64 values, ascending, stable.");
}
