// The exact matcher's lazy form: only the children of visited nodes are decided, each by a scan of
// the ads below it that stops as soon as every request that asks has found one. A signature is
// decided when an ad first shows it, and remembered for the batch.

#include "visited.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "offsets.h"
#include "threads.h"

namespace {

struct RangeTable {
    In1<double> min, max;
};

struct ValueTable {
    OffsetReader include_offsets;
    In1<int32_t> include_values;
    OffsetReader exclude_offsets;
    In1<int32_t> exclude_values;
};

struct Table {
    bool is_range;
    size_t position;
};

// What does not change from batch to batch.
struct Catalogue {
    In1<int64_t> level_offsets;
    OffsetReader child_offsets, sid_ad_offsets;
    In1<int32_t> ad_signatures;
    In1<uint8_t> ad_state;
    In2<int32_t> signatures;
    In2<int64_t> windows;
    std::vector<RangeTable> ranges;
    std::vector<ValueTable> values;
    std::vector<Table> tables;  // by attribute

    Catalogue(In1<int64_t> level_offsets, const Offsets& child_offsets, const Offsets& sid_ad_offsets,
              In1<int32_t> ad_signatures, In1<uint8_t> ad_state, In2<int32_t> signatures,
              In2<int64_t> windows, nb::list rules)
        : level_offsets(level_offsets),
          child_offsets(child_offsets),
          sid_ad_offsets(sid_ad_offsets),
          ad_signatures(ad_signatures),
          ad_state(ad_state),
          signatures(signatures),
          windows(windows) {
        for (nb::handle entry : rules) {
            auto arrays = nb::cast<nb::tuple>(entry);
            if (arrays.size() == 2) {
                tables.push_back({true, ranges.size()});
                ranges.push_back({nb::cast<In1<double>>(arrays[0]), nb::cast<In1<double>>(arrays[1])});
            } else {
                tables.push_back({false, values.size()});
                values.push_back({OffsetReader(nb::cast<Offsets>(arrays[0])), nb::cast<In1<int32_t>>(arrays[1]),
                                  OffsetReader(nb::cast<Offsets>(arrays[2])), nb::cast<In1<int32_t>>(arrays[3])});
            }
        }
        if (signatures.shape(1) != tables.size() + 1)
            throw std::invalid_argument("signatures need one column per attribute and one window");
    }

    int64_t first_leaf() const { return level_offsets.data()[level_offsets.shape(0) - 2]; }
};

// One child of a visited node waits for the first ads that accept the requests in `wanted`.
struct Visit {
    int64_t node;
    size_t beam;  // row of the result
    uint32_t bit;
};

class Visited {
public:
    // memo: a stamp in the high half of an entry says that the low half is this batch's word.
    Visited(const Catalogue& catalogue, uint32_t everyone, In1<int32_t> known, In2<double> numbers,
            In1<int64_t> at, nb::list carried,
            nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> memo, uint32_t stamp, int64_t budget)
        : catalogue_(catalogue),
          everyone_(everyone),
          known_(known),
          numbers_(numbers),
          at_(at),
          memo_(memo),
          stamp_(stamp),
          left_(budget) {
        if (memo.shape(0) != catalogue.signatures.shape(0) ||
            known.shape(0) != catalogue.tables.size() || carried.size() != catalogue.tables.size())
            throw std::invalid_argument("the batch does not fit the catalogue");
        for (nb::handle words : carried) carried_.push_back(nb::cast<In1<int32_t>>(words));
    }

    // int64 [32]: of the live ones among some ads, how many accept each request; [32] is their number.
    Out1<int64_t> count(In1<int64_t> ads) const {
        std::vector<int64_t> accepted(33);
        {
            nb::gil_scoped_release release;
            for (size_t i = 0; i < ads.shape(0); ++i) {
                const int64_t ad = ads.data()[i];
                if (catalogue_.ad_state.data()[ad] != 0) continue;
                ++accepted[32];
                for (uint32_t word = word_of(ad); word != 0; word &= word - 1)
                    ++accepted[static_cast<size_t>(std::countr_zero(word))];
            }
        }
        return to_numpy(std::move(accepted));
    }

    // int32 [B * M, words]: bit j of word j / 32 says whether the beam's node's j-th child has an ad
    // that accepts the beam's request. None if the batch has looked at more ads than
    // its budget.
    nb::object children(In2<int64_t> nodes, int workers) {
        const size_t requests = nodes.shape(0), beams = nodes.shape(1);
        std::vector<int32_t> result;
        size_t words = 0;
        {
            nb::gil_scoped_release release;
            std::vector<Visit> visits;
            int64_t widest = 0;
            size_t children = 0;
            for (size_t b = 0; b < requests; ++b)
                for (size_t m = 0; m < beams; ++m) {
                    const int64_t node = nodes.data()[b * beams + m];
                    if (node < 0) continue;
                    if (node >= catalogue_.first_leaf())
                        throw std::out_of_range("node " + std::to_string(node) + " has no children");
                    visits.push_back({node, b * beams + m, uint32_t{1} << b});
                    const int64_t width =
                        catalogue_.child_offsets[node + 1] - catalogue_.child_offsets[node];
                    widest = std::max(widest, width);
                    children += static_cast<size_t>(width);
                }
            words = static_cast<size_t>(widest + 31) / 32;
            result.resize(requests * beams * words);
            // Requests that stand on one node share its scan.
            std::sort(visits.begin(), visits.end(), [](const Visit& one, const Visit& other) {
                return one.node < other.node;
            });
            std::vector<size_t> groups;
            for (size_t i = 0; i < visits.size(); ++i)
                if (i == 0 || visits[i].node != visits[i - 1].node) groups.push_back(i);
            groups.push_back(visits.size());
            constexpr size_t kSmallest = 1 << 10;  // children that repay a thread
            const size_t threads = std::clamp<size_t>(children / kSmallest, 1,
                                                      static_cast<size_t>(std::max(workers, 1)));
            // Scans differ in length: a thread takes the next node when it is done with one.
            std::atomic<size_t> next = 0;
            in_parallel(threads, [&](size_t) {
                for (size_t group; (group = next.fetch_add(1)) + 1 < groups.size() && left_ >= 0;)
                    decide(visits.data() + groups[group], visits.data() + groups[group + 1],
                           result.data(), words);
            });
        }
        if (left_ < 0) return nb::none();
        return nb::cast(to_numpy(std::move(result), requests * beams, words));
    }

private:
    void decide(const Visit* first, const Visit* last, int32_t* result, size_t words) {
        uint32_t wanted = 0;
        for (const Visit* visit = first; visit < last; ++visit) wanted |= visit->bit;
        const int64_t begin = catalogue_.child_offsets[first->node];
        const int64_t end = catalogue_.child_offsets[first->node + 1];
        const size_t below = levels_below(begin + 1);
        int64_t ad = first_ad(begin + 1, below);
        for (int64_t entry = begin; entry < end; ++entry) {
            const int64_t stop = first_ad(entry + 2, below);
            uint32_t found = 0;
            const int64_t start = ad;
            // A child of many ads must not outlast the budget by much.
            const int64_t last_ad = std::min(stop, start + std::max<int64_t>(left_, 0) + 1);
            for (; ad < last_ad && found != wanted; ++ad)
                if (catalogue_.ad_state.data()[ad] == 0) found |= word_of(ad) & wanted;
            if ((left_ -= ad - start) < 0) return;
            ad = stop;
            const int64_t child = entry - begin;
            const auto bit = static_cast<int32_t>(uint32_t{1} << (child & 31));
            for (const Visit* visit = first; visit < last; ++visit)
                if (found & visit->bit)
                    result[visit->beam * words + static_cast<size_t>(child >> 5)] |= bit;
        }
    }

    size_t levels_below(int64_t node) const {
        const int64_t* bounds = catalogue_.level_offsets.data();
        const size_t levels = catalogue_.level_offsets.shape(0) - 2;
        size_t level = 0;
        while (bounds[level + 1] <= node) ++level;
        return levels - level;
    }

    // The first ad under a node so many levels above the leaves; of the node past a level's last
    // one, the end of the ads.
    int64_t first_ad(int64_t node, size_t below) const {
        for (; below > 0; --below) node = catalogue_.child_offsets[node] + 1;
        return catalogue_.sid_ad_offsets[node - catalogue_.first_leaf()];
    }

    uint32_t word_of(int64_t ad) const {
        const int32_t signature = catalogue_.ad_signatures.data()[ad];
        // Threads may decide one signature twice, with one result.
        std::atomic_ref<int64_t> entry(memo_.data()[signature]);
        const auto remembered = static_cast<uint64_t>(entry.load(std::memory_order_relaxed));
        if (remembered >> 32 == stamp_) return static_cast<uint32_t>(remembered);
        const uint32_t word = word_of_signature(signature);
        entry.store(static_cast<int64_t>(uint64_t{stamp_} << 32 | word), std::memory_order_relaxed);
        return word;
    }

    uint32_t word_of_signature(int32_t signature) const {
        const size_t attributes = catalogue_.tables.size();
        const int32_t* rules =
            catalogue_.signatures.data() + static_cast<size_t>(signature) * (attributes + 1);
        uint32_t word = everyone_;
        if (rules[attributes] != 0) {
            const int64_t* window = catalogue_.windows.data() + 2 * int64_t{rules[attributes]};
            uint32_t open = 0;
            for (size_t b = 0; b < at_.shape(0); ++b)
                open |= uint32_t{window[0] <= at_.data()[b] && at_.data()[b] < window[1]} << b;
            word &= open;
        }
        for (size_t a = 0; a < attributes && word != 0; ++a)
            if (rules[a] != 0)
                word &= catalogue_.tables[a].is_range ? word_of_range(a, rules[a])
                                                      : word_of_values(a, rules[a]);
        return word;
    }

    uint32_t word_of_range(size_t attribute, int32_t rule) const {
        const RangeTable& table = catalogue_.ranges[catalogue_.tables[attribute].position];
        const double low = table.min.data()[rule], high = table.max.data()[rule];
        const double* numbers = numbers_.data() + attribute * at_.shape(0);
        uint32_t word = 0;
        for (size_t b = 0; b < at_.shape(0); ++b)
            word |= uint32_t{low <= numbers[b] && numbers[b] <= high} << b;
        return word;
    }

    uint32_t word_of_values(size_t attribute, int32_t rule) const {
        const ValueTable& table = catalogue_.values[catalogue_.tables[attribute].position];
        auto word = static_cast<uint32_t>(known_.data()[attribute]);
        if (table.include_offsets[rule] < table.include_offsets[rule + 1])
            word &= carried_by(attribute, table.include_offsets, table.include_values, rule);
        return word & ~carried_by(attribute, table.exclude_offsets, table.exclude_values, rule);
    }

    uint32_t carried_by(size_t attribute, const OffsetReader& offsets, const In1<int32_t>& values,
                        int32_t rule) const {
        const int32_t* carried = carried_[attribute].data();
        int32_t word = 0;
        for (int64_t i = offsets[rule]; i < offsets[rule + 1]; ++i) word |= carried[values.data()[i]];
        return static_cast<uint32_t>(word);
    }

    const Catalogue& catalogue_;  // kept alive by the binding
    uint32_t everyone_;
    In1<int32_t> known_;
    In2<double> numbers_;
    In1<int64_t> at_;
    std::vector<In1<int32_t>> carried_;
    nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> memo_;
    uint32_t stamp_;
    std::atomic<int64_t> left_;  // ads that may still be looked at
};

}  // namespace

void bind_visited(nb::module_& module) {
    nb::class_<Catalogue>(module, "VisitedCatalogue", "See grace.kernels.visited_children.")
        .def(nb::init<In1<int64_t>, const Offsets&, const Offsets&, In1<int32_t>, In1<uint8_t>, In2<int32_t>,
                      In2<int64_t>, nb::list>(),
             nb::arg("level_offsets"), nb::arg("child_offsets"), nb::arg("sid_ad_offsets"),
             nb::arg("ad_signatures"), nb::arg("ad_state"), nb::arg("signatures"),
             nb::arg("windows"), nb::arg("rules"));
    nb::class_<Visited>(module, "Visited", "One batch of a VisitedCatalogue.")
        .def(nb::init<const Catalogue&, uint32_t, In1<int32_t>, In2<double>, In1<int64_t>, nb::list,
                      nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>, uint32_t,
                      int64_t>(),
             nb::keep_alive<1, 2>(), nb::arg("catalogue"), nb::arg("everyone"), nb::arg("known"),
             nb::arg("numbers"), nb::arg("at"), nb::arg("carried"), nb::arg("memo"),
             nb::arg("stamp"), nb::arg("budget"))
        .def("count", &Visited::count, nb::arg("ads"))
        .def("children", &Visited::children, nb::arg("nodes"), nb::arg("workers"));
}
