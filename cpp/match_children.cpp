// Which children of each beam's node a request may enter, tested where the beam stands (GRACE,
// section 4.4): bitmask first, Bloom filters of what is left, the first partition that passes ends a
// child. grace/kernels/match_children/reference.py is the specification.

#include "match_children.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "offsets.h"
#include "threads.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRACE_WIDEST_VECTORS \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GRACE_WIDEST_VECTORS
#endif

namespace {

using In4 = nb::ndarray<const int64_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

constexpr size_t kTogether = 8;  // places tested at once: 64-bit lanes of the widest vectors

// Whether a filter of `words` words holds all bits of any place; masks is [blocks, words, kTogether].
GRACE_WIDEST_VECTORS
bool holds_any(const uint64_t* filter, const uint64_t* masks, size_t blocks, size_t words) {
    for (size_t block = 0; block < blocks; ++block) {
        uint64_t missing[kTogether] = {};
        for (size_t t = 0; t < words; ++t, masks += kTogether) {
            const uint64_t held = filter[t];
            for (size_t j = 0; j < kTogether; ++j) missing[j] |= masks[j] & ~held;
        }
        bool hit = false;
        for (size_t j = 0; j < kTogether; ++j) hit |= missing[j] == 0;
        if (hit) return true;
    }
    return false;
}

// One set attribute of one request.
struct Places {
    bool known;
    size_t other_bit;             // of a bitmask row: it holds an ad that takes any place
    std::vector<uint64_t> masks;  // [blocks, words, kTogether]
    size_t blocks;
};

// What one request's last tests of pairs of rows found. Siblings and cousins share rows, so most
// tests of a real catalogue are repeated; a slot is overwritten by the next pair that falls on it.
class Remembered {
public:
    Remembered() : entries_(size_t{1} << kBits, kNothing) {}

    uint64_t& entry(uint64_t pair) { return entries_[pair * 0x9E3779B97F4A7C15 >> (64 - kBits)]; }

    static constexpr uint64_t kNothing = ~uint64_t{0};  // no pair of 31-bit ids

private:
    static constexpr int kBits = 12;  // 32 KiB: stays in the first-level cache
    std::vector<uint64_t> entries_;   // pair * 2 + verdict
};

struct Request {
    const uint64_t* want;
    std::vector<Places> slots;
    Remembered remembered;
};

class Tables {
public:
    Tables(const std::optional<Offsets>& partition_offsets, In1<int32_t> bitmask_index,
           In1<int32_t> bloom_index, In2<int64_t> bitmask_rows, In2<int64_t> bloom_rows, size_t filter)
        : bitmask_index_(bitmask_index.data()),
          bloom_index_(bloom_index.data()),
          bitmask_rows_(reinterpret_cast<const uint64_t*>(bitmask_rows.data())),
          bloom_rows_(reinterpret_cast<const uint64_t*>(bloom_rows.data())),
          bitmask_words_(bitmask_rows.shape(1)),
          bloom_words_(bloom_rows.shape(1)),
          filter_words_(filter) {
        if (partition_offsets) offsets_.emplace(*partition_offsets);
    }

    bool passes(size_t node, Request& request) const {
        if (!offsets_) return pair_passes(node, request);
        const int64_t end = (*offsets_)[node + 1];
        for (int64_t partition = (*offsets_)[node]; partition < end; ++partition)
            if (pair_passes(static_cast<size_t>(partition), request)) return true;
        return false;
    }

private:
    bool pair_passes(size_t partition, Request& request) const {
        const auto bitmask = static_cast<uint64_t>(bitmask_index_[partition]);
        const auto bloom = static_cast<uint64_t>(bloom_index_[partition]);
        const uint64_t pair = bitmask << 31 | bloom;
        uint64_t& entry = request.remembered.entry(pair);
        if (entry >> 1 != pair) entry = pair << 1 | uint64_t{rows_pass(bitmask, bloom, request)};
        return entry & 1;
    }

    bool rows_pass(size_t bitmask, size_t bloom, const Request& request) const {
        const uint64_t* bits = bitmask_rows_ + bitmask * bitmask_words_;
        for (size_t t = 0; t < bitmask_words_; ++t)
            if (request.want[t] & ~bits[t]) return false;
        const uint64_t* filter = bloom_rows_ + bloom * bloom_words_;
        for (size_t slot = 0; slot < request.slots.size(); ++slot) {
            const Places& places = request.slots[slot];
            if (!places.known || bits[places.other_bit / 64] >> places.other_bit % 64 & 1) continue;
            if (!holds_any(filter + slot * filter_words_, places.masks.data(), places.blocks,
                           filter_words_))
                return false;
        }
        return true;
    }

    std::optional<OffsetReader> offsets_;
    const int32_t *bitmask_index_, *bloom_index_;
    const uint64_t *bitmask_rows_, *bloom_rows_;
    size_t bitmask_words_, bloom_words_, filter_words_;
};

// Lays the first `count` of a request's places out for `holds_any`; a last block that is not full
// repeats a place, which changes no answer.
Places stage(const uint64_t* masks, int32_t count, size_t words, int64_t other_bit) {
    Places places{count >= 0, static_cast<size_t>(other_bit), {}, 0};
    const size_t num_places = static_cast<size_t>(std::max(count, 0));
    places.blocks = (num_places + kTogether - 1) / kTogether;
    places.masks.resize(places.blocks * words * kTogether);
    for (size_t block = 0; block < places.blocks; ++block)
        for (size_t j = 0; j < kTogether; ++j) {
            const size_t place = std::min(block * kTogether + j, num_places - 1);
            for (size_t t = 0; t < words; ++t)
                places.masks[(block * words + t) * kTogether + j] = masks[place * words + t];
        }
    return places;
}

Out2<int32_t> match_children(In2<int64_t> nodes, Offsets child_offsets,
                             std::optional<Offsets> partition_offsets, In1<int32_t> bitmask_index,
                             In1<int32_t> bloom_index, In2<int64_t> bitmask_rows,
                             In2<int64_t> bloom_rows, In2<int64_t> want, In4 places,
                             In2<int32_t> num_places, In1<int64_t> other_bits, int64_t num_words,
                             int workers) {
    const size_t batch = nodes.shape(0), beams = nodes.shape(1), width = static_cast<size_t>(num_words);
    const size_t slots = places.shape(1), most = places.shape(2), words = places.shape(3);
    const auto num_inner = static_cast<int64_t>(num_segments(child_offsets));
    std::vector<int32_t> allowed(batch * beams * width, 0);
    {
        nb::gil_scoped_release release;
        const OffsetReader offsets(child_offsets);
        const Tables tables(partition_offsets, bitmask_index, bloom_index, bitmask_rows, bloom_rows,
                            words);
        const auto* masks = reinterpret_cast<const uint64_t*>(places.data());
        const auto match_request = [&](size_t b) {
            Request request{reinterpret_cast<const uint64_t*>(want.data()) + b * want.shape(1), {}, {}};
            for (size_t slot = 0; slot < slots; ++slot) {
                const size_t at = b * slots + slot;
                request.slots.push_back(stage(masks + at * most * words, num_places.data()[at], words,
                                              other_bits.data()[slot]));
            }
            for (size_t row = b * beams; row < (b + 1) * beams; ++row) {
                const int64_t node = nodes.data()[row];
                if (node < 0) continue;
                if (node >= num_inner)
                    throw std::out_of_range("node " + std::to_string(node) + " has no children");
                const int64_t first = offsets[static_cast<size_t>(node)];
                const int64_t last = offsets[static_cast<size_t>(node) + 1];
                auto* bits = reinterpret_cast<uint32_t*>(allowed.data()) + row * width;
                for (int64_t entry = first; entry < last; ++entry)
                    if (tables.passes(static_cast<size_t>(entry + 1), request))
                        bits[(entry - first) / 32] |= uint32_t{1} << (entry - first) % 32;
            }
        };
        const size_t parts = std::clamp<size_t>(batch, 1, static_cast<size_t>(std::max(workers, 1)));
        const std::vector<size_t> bounds = split(batch, parts);
        in_parallel(parts, [&](size_t part) {
            for (size_t b = bounds[part]; b < bounds[part + 1]; ++b) match_request(b);
        });
    }
    return to_numpy(std::move(allowed), batch * beams, width);
}

}  // namespace

void bind_match_children(nb::module_& module) {
    module.def("match_children", &match_children, nb::arg("nodes"), nb::arg("child_offsets"),
               nb::arg("partition_offsets").none(), nb::arg("bitmask_index"), nb::arg("bloom_index"),
               nb::arg("bitmask_rows"), nb::arg("bloom_rows"), nb::arg("want"), nb::arg("places"),
               nb::arg("num_places"), nb::arg("other_bits"), nb::arg("num_words"), nb::arg("workers"));
}
