// The rows of GRACE's matchers: unions of ads' bits for every trie node, in one or more partitions,
// equal rows stored once. See grace/index/unions.py.
//
// A signature's rows are made once and an ad has those of its signature. From there on a row is an
// id; a union of equal ids needs no work, which is most leaves of a real catalogue.

#include "unions.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>

#include "offsets.h"
#include "partitioner.h"
#include "row_table.h"
#include "rule_rows.h"
#include "threads.h"

namespace {

// The partitions of one level's nodes; `counts` is empty where each node has exactly one.
struct Level {
    std::vector<int32_t> counts;
    RowIds ids;
};

// The union of rows given by their ids.
class Union {
public:
    explicit Union(RowTable& table) : table_(table), row_(table.width()) {}

    void start(int32_t id) {
        id_ = id;
        mixed_ = false;
    }

    void add(int32_t id) {
        if (id == id_) return;
        if (!mixed_) std::copy_n(table_.row(id_), row_.size(), row_.begin());
        mixed_ = true;
        const uint64_t* other = table_.row(id);
        for (size_t t = 0; t < row_.size(); ++t) row_[t] |= other[t];
    }

    int32_t finish() { return mixed_ ? table_.intern(row_.data()) : id_; }

private:
    RowTable& table_;
    std::vector<uint64_t> row_;
    int32_t id_ = 0;
    bool mixed_ = false;
};

class Builder {
public:
    Builder(RuleRows& rules, In2<int32_t> signatures, In1<int32_t> ad_signatures,
            const Offsets& sid_ad_offsets, In1<int64_t> level_offsets, const Offsets& child_offsets,
            int64_t num_bits, int workers)
        : rules_(rules),
          signatures_(signatures),
          ad_signatures_(ad_signatures.data()),
          sid_ad_offsets_(sid_ad_offsets),
          level_offsets_(level_offsets.data()),
          num_levels_(level_offsets.shape(0) - 2),
          child_offsets_(child_offsets),
          num_bits_(num_bits),
          workers_(workers),
          bitmasks_(rules.bitmask_words()),
          blooms_(rules.bloom_words()) {}

    // most[l]: the most partitions of a node of prefix length l.
    void build(In1<int32_t> most, std::optional<double> target) {
        make_signature_rows();
        make_sid_rows();
        find_sids();
        levels_.resize(num_levels_ + 1);
        for (size_t level = num_levels_ + 1; level-- > 0;) {
            const auto k = static_cast<size_t>(most.data()[level]);
            if (level == num_levels_)
                k == 1 ? void(levels_[level].ids = sids_) : split_ads(k, target);
            else
                k == 1 ? unite_children(level) : split_sids(level, k, target);
        }
    }

    RowTable& bitmasks() { return bitmasks_; }
    RowTable& blooms() { return blooms_; }
    std::vector<Level>& levels() { return levels_; }
    size_t num_nodes(size_t level) const {
        return static_cast<size_t>(level_offsets_[level + 1] - level_offsets_[level]);
    }

private:
    void make_signature_rows() {
        rules_.hash_values(workers_);
        const size_t count = signatures_.shape(0);
        of_signature_.bitmask.resize(count);
        of_signature_.bloom.resize(count);
        over_range(count, workers_, [&](size_t first, size_t last) {
            std::vector<uint64_t> bitmask(bitmasks_.width()), bloom(blooms_.width());
            for (size_t i = first; i < last; ++i) {
                const int32_t* signature = signatures_.data() + i * signatures_.shape(1);
                rules_.write(signature, bitmask.data(), bloom.data());
                of_signature_.bitmask[i] = bitmasks_.intern(bitmask.data());
                of_signature_.bloom[i] = blooms_.intern(bloom.data());
            }
        });
    }

    void make_sid_rows() {
        const size_t count = num_nodes(num_levels_);
        sids_.bitmask.resize(count);
        sids_.bloom.resize(count);
        over_range(count, workers_, [&](size_t first, size_t last) {
            Union bitmask(bitmasks_), bloom(blooms_);
            for (size_t sid = first; sid < last; ++sid) {
                const int64_t begin = sid_ad_offsets_[sid], end = sid_ad_offsets_[sid + 1];
                auto [mask, filter] = of_ad(begin);
                bitmask.start(mask);
                bloom.start(filter);
                for (int64_t ad = begin + 1; ad < end; ++ad) {
                    std::tie(mask, filter) = of_ad(ad);
                    bitmask.add(mask);
                    bloom.add(filter);
                }
                sids_.bitmask[sid] = bitmask.finish();
                sids_.bloom[sid] = bloom.finish();
            }
        });
    }

    std::pair<int32_t, int32_t> of_ad(int64_t ad) const {
        const auto signature = static_cast<size_t>(ad_signatures_[ad]);
        return {of_signature_.bitmask[signature], of_signature_.bloom[signature]};
    }

    // first_sids_[l][i]: the first SID below node i of level l; one more entry ends the last.
    void find_sids() {
        first_sids_.resize(num_levels_);
        for (size_t level = num_levels_; level-- > 0;) {
            const size_t count = num_nodes(level);
            first_sids_[level].resize(count + 1);
            for (size_t i = 0; i <= count; ++i) {
                const int64_t child = first_child(level, i);
                first_sids_[level][i] = level + 1 == num_levels_
                                            ? child
                                            : first_sids_[level + 1][static_cast<size_t>(child)];
            }
        }
    }

    // The first child of node i of a level, counted within the level below.
    int64_t first_child(size_t level, size_t i) const {
        const size_t node = static_cast<size_t>(level_offsets_[level]) + i;
        return child_offsets_[node] + 1 - level_offsets_[level + 1];  // entry e leads to node e + 1
    }

    void unite_children(size_t level) {
        const size_t count = num_nodes(level);
        const Level& below = levels_[level + 1];
        std::vector<int64_t> starts;  // of each child's partitions, where they are not one each
        if (!below.counts.empty()) {
            starts.resize(below.counts.size() + 1);
            for (size_t i = 0; i < below.counts.size(); ++i) starts[i + 1] = starts[i] + below.counts[i];
        }
        RowIds& ids = levels_[level].ids;
        ids.bitmask.resize(count);
        ids.bloom.resize(count);
        over_blocks(count, [&](size_t, size_t first, size_t last) {
            Union bitmask(bitmasks_), bloom(blooms_);
            for (size_t i = first; i < last; ++i) {
                int64_t begin = first_child(level, i), end = first_child(level, i + 1);
                if (!starts.empty()) begin = starts[begin], end = starts[end];
                bitmask.start(below.ids.bitmask[begin]);
                bloom.start(below.ids.bloom[begin]);
                for (int64_t j = begin + 1; j < end; ++j) {
                    bitmask.add(below.ids.bitmask[j]);
                    bloom.add(below.ids.bloom[j]);
                }
                ids.bitmask[i] = bitmask.finish();
                ids.bloom[i] = bloom.finish();
            }
        });
    }

    void split_ads(size_t k, std::optional<double> target) {
        const auto bounds = [this](size_t sid) { return sid_ad_offsets_[sid]; };
        const auto unit = [this](int64_t ad) { return of_ad(ad); };
        split(num_levels_, k, target, bounds, unit);
    }

    void split_sids(size_t level, size_t k, std::optional<double> target) {
        const auto bounds = [&](size_t i) { return first_sids_[level][i]; };
        const auto unit = [this](int64_t sid) {
            return std::pair(sids_.bitmask[sid], sids_.bloom[sid]);
        };
        split(level, k, target, bounds, unit);
    }

    template <typename Bounds, typename Unit>
    void split(size_t level, size_t k, std::optional<double> target, const Bounds& bounds,
               const Unit& unit) {
        const size_t count = num_nodes(level);
        Level& result = levels_[level];
        result.counts.resize(count);
        std::vector<RowIds> parts(num_blocks(count));
        over_blocks(count, [&](size_t block, size_t first, size_t last) {
            Partitioner partitioner(bitmasks_, blooms_, k, target, num_bits_);
            for (size_t i = first; i < last; ++i) {
                const int64_t begin = bounds(i), end = bounds(i + 1);
                if (end - begin == 1) {
                    const auto [bitmask, bloom] = unit(begin);
                    parts[block].push(bitmask, bloom);
                    result.counts[i] = 1;
                } else {
                    result.counts[i] = partitioner.split(begin, end, unit, parts[block]);
                }
            }
        });
        for (RowIds& part : parts) {
            result.ids.bitmask.insert(result.ids.bitmask.end(), part.bitmask.begin(), part.bitmask.end());
            result.ids.bloom.insert(result.ids.bloom.end(), part.bloom.begin(), part.bloom.end());
            part = {};
        }
    }

    // Nodes differ in size, so threads take small blocks of them as they go.
    size_t num_blocks(size_t count) const {
        return std::clamp<size_t>(count, 1, workers_ == 1 ? 1 : 64 * static_cast<size_t>(workers_));
    }

    template <typename Work>
    void over_blocks(size_t count, const Work& work) const {
        const std::vector<size_t> bounds = ::split(count, num_blocks(count));
        std::atomic<size_t> next = 0;
        const size_t threads = std::min<size_t>(static_cast<size_t>(workers_), num_blocks(count));
        in_parallel(threads, [&](size_t) {
            for (size_t block; (block = next++) + 1 < bounds.size();)
                work(block, bounds[block], bounds[block + 1]);
        });
    }

    RuleRows& rules_;
    In2<int32_t> signatures_;
    const int32_t* ad_signatures_;
    OffsetReader sid_ad_offsets_;
    const int64_t* level_offsets_;
    size_t num_levels_;
    OffsetReader child_offsets_;
    int64_t num_bits_;
    int workers_;
    RowTable bitmasks_, blooms_;
    RowIds of_signature_, sids_;
    std::vector<std::vector<int64_t>> first_sids_;
    std::vector<Level> levels_;
};

// Joins the levels' ids and numbers rows by first appearance, so that no order of threads shows.
struct Numbered {
    std::vector<int32_t> index;
    std::vector<int64_t> rows;
    size_t num_rows, width;
};

Numbered number_rows(const RowTable& table, std::vector<Level>& levels,
                     std::vector<int32_t> RowIds::* member) {
    Numbered result{{}, {}, 0, table.width()};
    size_t total = 0;
    for (const Level& level : levels) total += (level.ids.*member).size();
    result.index.reserve(total);
    std::vector<int32_t> numbers(table.bound(), -1);
    std::vector<int32_t> order;
    for (Level& level : levels) {
        for (const int32_t id : level.ids.*member) {
            int32_t& number = numbers[static_cast<size_t>(id)];
            if (number < 0) {
                number = static_cast<int32_t>(order.size());
                order.push_back(id);
            }
            result.index.push_back(number);
        }
        level.ids.*member = {};
    }
    result.num_rows = order.size();
    result.rows.resize(order.size() * table.width());
    for (size_t i = 0; i < order.size(); ++i)
        std::copy_n(table.row(order[i]), table.width(),
                    reinterpret_cast<uint64_t*>(result.rows.data()) + i * table.width());
    return result;
}

nb::tuple build_unions(nb::list attributes, int64_t bitmask_bits, int64_t bloom_bits,
                       int64_t num_hashes, In2<int32_t> signatures, In1<int32_t> ad_signatures,
                       Offsets sid_ad_offsets, In1<int64_t> level_offsets, Offsets child_offsets,
                       In1<int32_t> most, std::optional<double> target, int workers) {
    if (most.shape(0) + 1 != level_offsets.shape(0))
        throw std::invalid_argument("most needs an entry for each prefix length");
    for (size_t i = 0; i < most.shape(0); ++i)
        if (most.data()[i] < 1) throw std::invalid_argument("a node needs at least one partition");
    RuleRows rules(attributes, bitmask_bits, bloom_bits, num_hashes);
    std::optional<std::vector<int64_t>> offsets;
    Numbered bitmasks, blooms;
    {
        nb::gil_scoped_release release;
        const int64_t num_bits = bitmask_bits + static_cast<int64_t>(rules.bloom_words()) * 64;
        Builder builder(rules, signatures, ad_signatures, sid_ad_offsets, level_offsets, child_offsets,
                        num_bits, std::max(workers, 1));
        builder.build(most, target);
        std::vector<Level>& levels = builder.levels();
        if (std::any_of(levels.begin(), levels.end(), [](const Level& l) { return !l.counts.empty(); })) {
            offsets.emplace(1, 0);
            offsets->reserve(static_cast<size_t>(level_offsets.data()[levels.size()]) + 1);
            for (size_t level = 0; level < levels.size(); ++level)
                for (size_t i = 0; i < builder.num_nodes(level); ++i)
                    offsets->push_back(offsets->back() +
                                       (levels[level].counts.empty() ? 1 : levels[level].counts[i]));
        }
        bitmasks = number_rows(builder.bitmasks(), levels, &RowIds::bitmask);
        blooms = number_rows(builder.blooms(), levels, &RowIds::bloom);
    }
    nb::object partition_offsets = nb::none();
    if (offsets) partition_offsets = nb::cast(to_numpy(std::move(*offsets)));
    return nb::make_tuple(partition_offsets, to_numpy(std::move(bitmasks.index)),
                          to_numpy(std::move(blooms.index)),
                          to_numpy(std::move(bitmasks.rows), bitmasks.num_rows, bitmasks.width),
                          to_numpy(std::move(blooms.rows), blooms.num_rows, blooms.width));
}

}  // namespace

void bind_unions(nb::module_& module) {
    module.def("build_unions", &build_unions, nb::arg("attributes"), nb::arg("bitmask_bits"),
               nb::arg("bloom_bits"), nb::arg("num_hashes"), nb::arg("signatures"),
               nb::arg("ad_signatures"), nb::arg("sid_ad_offsets"), nb::arg("level_offsets"),
               nb::arg("child_offsets"), nb::arg("most"), nb::arg("target").none(), nb::arg("workers"));
}
