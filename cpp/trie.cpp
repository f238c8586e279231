// The trie of sorted SIDs in level order, and back. Two passes over the ads, each split over threads:
// the first counts how many nodes every piece begins on each level, the second writes them in place.

#include "trie.h"

#include <stdexcept>

#include "offsets.h"
#include "threads.h"

namespace {

using Rows = std::optional<In1<uint32_t>>;

// Ads in the order of their SIDs.
struct Ads {
    const int32_t* sids;
    const uint32_t* order;  // null where the SIDs are sorted already
    size_t size, levels;

    const int32_t* sid(size_t i) const { return sids + (order ? order[i] : i) * levels; }
};

// How many leading tokens each ad shares with the ad before it; L for an ad on the same SID.
std::vector<uint8_t> shared_tokens(const Ads& ads, int workers) {
    std::vector<uint8_t> shared(ads.size, 0);
    over_range(ads.size, workers, [&](size_t first, size_t last) {
        for (size_t i = std::max<size_t>(first, 1); i < last; ++i) {
            const int32_t *before = ads.sid(i - 1), *sid = ads.sid(i);
            const auto pair = std::mismatch(sid, sid + ads.levels, before);
            if (pair.first != sid + ads.levels && *pair.first < *pair.second)
                throw std::invalid_argument("SIDs must ascend");
            shared[i] = static_cast<uint8_t>(pair.first - sid);
        }
    });
    return shared;
}

template <typename Offset>
struct Nodes {
    std::vector<Offset> child_offsets;
    std::vector<int32_t> child_tokens;
};

// `next[part][level]` is the first node that a part begins on a level; L + 1 entries each.
template <typename Offset>
Nodes<Offset> fill_nodes(const Ads& ads, const std::vector<uint8_t>& shared,
                         const std::vector<size_t>& bounds, std::vector<std::vector<int64_t>> next,
                         const std::vector<int64_t>& level_offsets) {
    const size_t levels = ads.levels;
    Nodes<Offset> nodes;
    nodes.child_offsets.resize(static_cast<size_t>(level_offsets[levels]) + 1);
    nodes.child_tokens.resize(static_cast<size_t>(level_offsets[levels + 1]) - 1);
    nodes.child_offsets[0] = 0;
    nodes.child_offsets.back() = static_cast<Offset>(nodes.child_tokens.size());
    in_parallel(next.size(), [&](size_t part) {
        std::vector<int64_t>& node = next[part];
        for (size_t i = bounds[part]; i < bounds[part + 1]; ++i) {
            const int32_t* sid = ads.sid(i);
            for (size_t level = shared[i] + size_t{1}; level <= levels; ++level) {
                nodes.child_tokens[static_cast<size_t>(node[level]) - 1] = sid[level - 1];
                if (level < levels)  // its first child begins at this same ad
                    nodes.child_offsets[static_cast<size_t>(node[level])] =
                        static_cast<Offset>(node[level + 1] - 1);
                ++node[level];
            }
        }
    });
    return nodes;
}

template <typename Offset>
std::vector<Offset> first_ads(const std::vector<uint8_t>& shared, size_t levels, size_t num_sids) {
    std::vector<Offset> offsets;
    offsets.reserve(num_sids + 1);
    for (size_t i = 0; i < shared.size(); ++i)
        if (shared[i] < levels) offsets.push_back(static_cast<Offset>(i));
    offsets.push_back(static_cast<Offset>(shared.size()));
    return offsets;
}

// (level_offsets, child_offsets, child_tokens, sid_ad_offsets); offsets are int32 where they fit.
nb::tuple build_trie(In2<int32_t> sids, Rows order, int workers) {
    const Ads ads{sids.data(), order ? order->data() : nullptr,
                  order ? order->shape(0) : sids.shape(0), sids.shape(1)};
    if (ads.size == 0 || ads.levels == 0 || ads.levels > 255)
        throw std::invalid_argument("a trie needs at least one SID of 1 to 255 tokens");
    std::vector<uint8_t> shared;
    std::vector<int64_t> level_offsets(ads.levels + 2, 0);
    std::vector<std::vector<int64_t>> next;
    std::vector<size_t> bounds;
    Nodes<int32_t> narrow;
    Nodes<int64_t> wide;
    bool fits;
    {
        nb::gil_scoped_release release;
        shared = shared_tokens(ads, workers);
        const size_t parts =
            std::clamp<size_t>(ads.size >> 16, 1, static_cast<size_t>(std::max(workers, 1)));
        bounds = split(ads.size, parts);
        next.assign(parts, std::vector<int64_t>(ads.levels + 1, 0));
        in_parallel(parts, [&](size_t part) {
            std::vector<int64_t> with(ads.levels + 1, 0);  // ads by the number of shared tokens
            for (size_t i = bounds[part]; i < bounds[part + 1]; ++i) ++with[shared[i]];
            for (size_t level = 1; level <= ads.levels; ++level)
                next[part][level] = next[part][level - 1] + with[level - 1];
        });
        level_offsets[1] = 1;
        for (size_t level = 1; level <= ads.levels; ++level) {
            int64_t node = level_offsets[level];
            for (std::vector<int64_t>& part : next) {
                const int64_t count = part[level];
                part[level] = node;
                node += count;
            }
            level_offsets[level + 1] = node;
        }
        fits = level_offsets.back() <= INT32_MAX;
        if (fits) narrow = fill_nodes<int32_t>(ads, shared, bounds, next, level_offsets);
        else wide = fill_nodes<int64_t>(ads, shared, bounds, next, level_offsets);
    }
    const size_t num_sids =
        static_cast<size_t>(level_offsets[ads.levels + 1] - level_offsets[ads.levels]);
    nb::object child_offsets = fits ? nb::cast(to_numpy(std::move(narrow.child_offsets)))
                                    : nb::cast(to_numpy(std::move(wide.child_offsets)));
    nb::object child_tokens =
        nb::cast(to_numpy(std::move(fits ? narrow.child_tokens : wide.child_tokens)));
    nb::object ad_offsets =
        ads.size <= INT32_MAX
            ? nb::cast(to_numpy(first_ads<int32_t>(shared, ads.levels, num_sids)))
            : nb::cast(to_numpy(first_ads<int64_t>(shared, ads.levels, num_sids)));
    return nb::make_tuple(to_numpy(std::move(level_offsets)), child_offsets, child_tokens,
                          ad_offsets);
}

// int32 [N, L]: the SIDs of a trie, ascending; [A, L], each once per ad, where `ad_offsets` is given.
template <typename Offset>
Out2<int32_t> trie_sids(In1<int64_t> level_offsets, In1<Offset> child_offsets,
                        In1<int32_t> child_tokens, std::optional<Offsets> ad_offsets, int workers) {
    std::optional<OffsetReader> ads;
    if (ad_offsets) ads.emplace(*ad_offsets);
    const size_t levels = level_offsets.shape(0) - 2;
    const int64_t* starts = level_offsets.data();
    const size_t num_sids = static_cast<size_t>(starts[levels + 1] - starts[levels]);
    const size_t num_rows = ads ? static_cast<size_t>((*ads)[num_sids]) : num_sids;
    std::vector<int32_t> sids(num_rows * levels);
    {
        nb::gil_scoped_release release;
        // A piece of level 1 covers a piece of every deeper level, so threads share nothing.
        const size_t roots = static_cast<size_t>(starts[2] - starts[1]);
        const size_t parts = std::clamp<size_t>(num_sids >> 16, 1,
                                                std::min<size_t>(roots, std::max(workers, 1)));
        const std::vector<size_t> bounds = split(roots, parts);
        in_parallel(parts, [&](size_t part) {
            std::vector<int64_t> node(levels + 1);
            node[1] = starts[1] + static_cast<int64_t>(bounds[part]);
            const int64_t past = starts[1] + static_cast<int64_t>(bounds[part + 1]);
            if (node[1] == past) return;
            for (size_t level = 2; level <= levels; ++level)
                node[level] = child_offsets.data()[node[level - 1]] + int64_t{1};
            std::vector<int64_t> last(levels + 1);  // one past the last child of node[level - 1]
            for (size_t level = 2; level <= levels; ++level)
                last[level] = child_offsets.data()[node[level - 1] + 1] + int64_t{1};
            last[1] = past;
            while (true) {
                const size_t number = static_cast<size_t>(node[levels] - starts[levels]);
                const size_t first = ads ? static_cast<size_t>((*ads)[number]) : number;
                const size_t end = ads ? static_cast<size_t>((*ads)[number + 1]) : number + 1;
                for (size_t row = first; row < end; ++row)
                    for (size_t level = 1; level <= levels; ++level)
                        sids[row * levels + level - 1] = child_tokens.data()[node[level] - 1];
                size_t level = levels;
                while (level > 0 && ++node[level] == last[level]) --level;
                if (level == 0) return;
                for (++level; level <= levels; ++level)
                    last[level] = child_offsets.data()[node[level - 1] + 1] + int64_t{1};
            }
        });
    }
    return to_numpy(std::move(sids), num_rows, levels);
}

}  // namespace

void bind_trie(nb::module_& module) {
    module.def("build_trie", &build_trie, nb::arg("sids"), nb::arg("order").none(),
               nb::arg("workers"),
               "(level_offsets, child_offsets, child_tokens, sid_ad_offsets) of ads' SIDs [A, L] "
               "taken in `order`, in which they must ascend.");
    module.def("trie_sids", &trie_sids<int32_t>, nb::arg("level_offsets"), nb::arg("child_offsets"),
               nb::arg("child_tokens"), nb::arg("ad_offsets").none(), nb::arg("workers"));
    module.def("trie_sids", &trie_sids<int64_t>, nb::arg("level_offsets"), nb::arg("child_offsets"),
               nb::arg("child_tokens"), nb::arg("ad_offsets").none(), nb::arg("workers"),
               "int32 [N, L]: a trie's SIDs, or [A, L]: those of its ads.");
}
