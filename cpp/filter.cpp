// The last filter: SIDs -> their ads -> the ads whose own rules accept one request.
//
// Every ad is decided from its rules each time; nothing is remembered between ads. A check reads the
// ad's signature (its rule ids side by side, one cache line) and then only the rules it names.

#include "filter.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include "offsets.h"
#include "threads.h"

namespace {

// Reasons for a refusal, in the order in which they are counted; attribute a is kFirstAttribute + a.
// The bits of an ad's state are the first reasons: bit 0 paused, bit 1 bid off.
constexpr uint64_t kStateBits = 0b11;
constexpr int kWindow = 2;
constexpr int kFirstAttribute = 3;

// The distinct rules of a range attribute; rule 0, "no rule", is (-inf, inf).
struct RangeRules {
    In1<double> min, max;
};

// The distinct rules of a categorical or set attribute, as value ids in CSR form; rule 0 is empty.
struct ValueRules {
    OffsetReader include_offsets;
    In1<int32_t> include_values;
    OffsetReader exclude_offsets;
    In1<int32_t> exclude_values;
    int64_t num_values;
};

// One attribute of one request, ready for checks.
struct RequestValue {
    bool known = false;
    double number = 0;
    std::vector<uint64_t> carried;  // a bit per value id of the attribute

    bool carries_any(const int32_t* first, const int32_t* last) const {
        return std::any_of(first, last, [this](int32_t value) {
            return carried[static_cast<size_t>(value) >> 6] >> (value & 63) & 1;
        });
    }
};

struct Request {
    int64_t at;
    std::vector<RequestValue> values;
};

class AdFilter {
public:
    AdFilter(In2<int32_t> signatures, In1<int32_t> ad_signatures, In2<int64_t> windows,
             Offsets sid_ad_offsets, nb::list rules)
        : signatures_(signatures),
          ad_signatures_(ad_signatures),
          windows_(windows),
          sid_ad_offsets_(sid_ad_offsets) {
        for (nb::handle entry : rules) {
            auto arrays = nb::cast<nb::tuple>(entry);
            if (arrays.size() == 2) {
                ranges_.push_back({nb::cast<In1<double>>(arrays[0]), nb::cast<In1<double>>(arrays[1])});
                slot_.push_back({true, ranges_.size() - 1});
            } else {
                sets_.push_back({OffsetReader(nb::cast<Offsets>(arrays[0])), nb::cast<In1<int32_t>>(arrays[1]),
                                 OffsetReader(nb::cast<Offsets>(arrays[2])),
                                 nb::cast<In1<int32_t>>(arrays[3]), nb::cast<int64_t>(arrays[4])});
                slot_.push_back({false, sets_.size() - 1});
            }
        }
        if (signatures_.shape(1) != slot_.size() + 1)
            throw std::invalid_argument("signatures need one column per attribute and one window");
    }

    // All reasons why each ad refuses the request, as bits; 0 where it accepts.
    Out1<uint64_t> explain(In1<int64_t> positions, In1<uint8_t> state, int64_t at, In1<uint8_t> known,
                           In1<double> numbers, nb::list value_ids) const {
        const Given given = take(at, known, numbers, value_ids);
        const int64_t num_ads = static_cast<int64_t>(ad_signatures_.shape(0));
        std::vector<uint64_t> masks(positions.shape(0));
        {
            nb::gil_scoped_release release;
            const Request request = prepare(given);
            for (size_t i = 0; i < masks.size(); ++i) {
                const int64_t ad = positions.data()[i];
                if (ad < 0 || ad >= num_ads)
                    throw std::out_of_range("no ad at position " + std::to_string(ad));
                masks[i] = refusals<false>(ad, state.data(), request);
            }
        }
        return to_numpy(std::move(masks));
    }

    // The eligible ads of some SIDs, in the order given: (positions, rows of `sids`, number of
    // expanded ads, ads dropped by each reason, first reason counted).
    nb::tuple expand(In1<int64_t> sids, In1<uint8_t> state, int64_t at, In1<uint8_t> known,
                     In1<double> numbers, nb::list value_ids) const {
        const Given given = take(at, known, numbers, value_ids);
        Kept kept(kFirstAttribute + slot_.size());
        {
            nb::gil_scoped_release release;
            const Request request = prepare(given);
            for (size_t row = 0; row < sids.shape(0); ++row)
                collect(sids.data()[row], static_cast<int64_t>(row), state.data(), request, kept);
        }
        return nb::make_tuple(to_numpy(std::move(kept.ads)), to_numpy(std::move(kept.rows)),
                              kept.expanded, to_numpy(std::move(kept.dropped)));
    }

    // The ads of a whole batch's beams: per request (positions, SIDs, scores, [generated SIDs, those in
    // the catalogue, those with an eligible ad, ads expanded, ads eligible], ads dropped by each
    // reason). A beam is dead where its score is -inf, and outside the catalogue where its node is -1.
    // Threads share the requests; an ad's rules lie anywhere in memory, so one thread mostly waits.
    nb::list find(In3<int64_t> tokens, In2<int64_t> nodes, In2<float> scores, int64_t first_leaf,
                  In1<uint8_t> state, nb::list requests, In1<int64_t> top_k, int workers) const {
        const size_t batch = nodes.shape(0), beams = nodes.shape(1), length = tokens.shape(2);
        if (tokens.shape(0) != batch || tokens.shape(1) != beams || scores.shape(0) != batch ||
            scores.shape(1) != beams || requests.size() != batch || top_k.shape(0) != batch)
            throw std::invalid_argument("every request needs beams, and every beam a SID and a score");
        std::vector<Given> given;
        given.reserve(batch);
        for (nb::handle request : requests) {
            auto parts = nb::cast<nb::tuple>(request);
            given.push_back(take(nb::cast<int64_t>(parts[0]), nb::cast<In1<uint8_t>>(parts[1]),
                                 nb::cast<In1<double>>(parts[2]), nb::cast<nb::list>(parts[3])));
        }
        std::vector<Found> found(batch);
        {
            nb::gil_scoped_release release;
            each_in_parallel(batch, workers, [&](size_t b) {
                const Request request = prepare(given[b]);
                Kept kept(kFirstAttribute + slot_.size());
                int64_t generated = 0, cataloged = 0, eligible = 0;
                for (size_t k = 0; k < beams; ++k) {
                    if (!(scores.data()[b * beams + k] > -std::numeric_limits<float>::infinity())) continue;
                    ++generated;
                    const int64_t node = nodes.data()[b * beams + k];
                    if (node < 0) continue;
                    ++cataloged;
                    const size_t before = kept.ads.size();
                    collect(node - first_leaf, static_cast<int64_t>(k), state.data(), request, kept);
                    eligible += kept.ads.size() > before;
                }
                Found& one = found[b];
                one.counts = {generated, cataloged, eligible, kept.expanded,
                              static_cast<int64_t>(kept.ads.size())};
                const int64_t most = top_k.data()[b];
                if (most >= 0 && static_cast<size_t>(most) < kept.ads.size())
                    kept.ads.resize(static_cast<size_t>(most));
                one.sids.reserve(kept.ads.size() * length);
                one.scores.reserve(kept.ads.size());
                for (size_t i = 0; i < kept.ads.size(); ++i) {
                    const size_t beam = b * beams + static_cast<size_t>(kept.rows[i]);
                    one.scores.push_back(scores.data()[beam]);
                    const int64_t* sid = tokens.data() + beam * length;
                    one.sids.insert(one.sids.end(), sid, sid + length);
                }
                one.positions = std::move(kept.ads);
                one.dropped = std::move(kept.dropped);
            });
        }
        nb::list answers;
        for (Found& one : found) {
            const size_t count = one.positions.size();
            answers.append(nb::make_tuple(
                to_numpy(std::move(one.positions)), to_numpy(std::move(one.sids), count, length),
                to_numpy(std::move(one.scores)), to_numpy(std::move(one.counts)),
                to_numpy(std::move(one.dropped))));
        }
        return answers;
    }

private:
    struct Slot {
        bool is_range;
        size_t position;
    };

    // What is left of some SIDs' ads.
    struct Kept {
        explicit Kept(size_t num_reasons) : dropped(num_reasons) {}
        std::vector<int64_t> ads, rows, dropped;
        int64_t expanded = 0;
    };

    struct Given {
        int64_t at;
        In1<uint8_t> known;
        In1<double> numbers;
        std::vector<std::optional<In1<int32_t>>> value_ids;  // none of a range
    };

    struct Found {
        std::vector<int64_t> positions, sids, counts, dropped;
        std::vector<float> scores;
    };

    void collect(int64_t sid, int64_t row, const uint8_t* state, const Request& request,
                 Kept& kept) const {
        if (sid < 0 || sid >= static_cast<int64_t>(sid_ad_offsets_.num_segments()))
            throw std::out_of_range("no SID with index " + std::to_string(sid));
        const int64_t first = sid_ad_offsets_[static_cast<size_t>(sid)];
        const int64_t last = sid_ad_offsets_[static_cast<size_t>(sid) + 1];
        kept.expanded += last - first;
        for (int64_t ad = first; ad < last; ++ad) {
            const uint64_t refusal = refusals<true>(ad, state, request);
            if (refusal != 0) {
                ++kept.dropped[static_cast<size_t>(std::countr_zero(refusal))];
            } else {
                kept.ads.push_back(ad);
                kept.rows.push_back(row);
            }
        }
    }

    // What a request says, where Python has it; read with the interpreter, used without.
    Given take(int64_t at, In1<uint8_t> known, In1<double> numbers, nb::list value_ids) const {
        if (known.shape(0) != slot_.size() || numbers.shape(0) != slot_.size() ||
            value_ids.size() != slot_.size())
            throw std::invalid_argument("a request needs one value per attribute");
        Given given{at, known, numbers, std::vector<std::optional<In1<int32_t>>>(slot_.size())};
        for (size_t a = 0; a < slot_.size(); ++a)
            if (!slot_[a].is_range) given.value_ids[a] = nb::cast<In1<int32_t>>(value_ids[a]);
        return given;
    }

    Request prepare(const Given& given) const {
        Request request{given.at, std::vector<RequestValue>(slot_.size())};
        for (size_t a = 0; a < slot_.size(); ++a) {
            RequestValue& value = request.values[a];
            value.known = given.known.data()[a] != 0;
            value.number = given.numbers.data()[a];
            if (slot_[a].is_range) continue;
            const int64_t num_values = sets_[slot_[a].position].num_values;
            value.carried.resize(static_cast<size_t>(num_values + 63) / 64);
            const In1<int32_t>& ids = *given.value_ids[a];
            for (size_t i = 0; i < ids.shape(0); ++i) {
                const int32_t id = ids.data()[i];
                if (id < 0 || id >= num_values) throw std::out_of_range("no such attribute value");
                value.carried[static_cast<size_t>(id) >> 6] |= uint64_t{1} << (id & 63);
            }
        }
        return request;
    }

    // The reasons why an ad refuses, as bits; only the first one where `stop_at_first`.
    template <bool stop_at_first>
    uint64_t refusals(int64_t ad, const uint8_t* state, const Request& request) const {
        uint64_t reasons = state[ad] & kStateBits;
        if (stop_at_first && reasons != 0) return reasons;
        const size_t num_attributes = slot_.size();
        const int32_t* signature =
            signatures_.data() + static_cast<size_t>(ad_signatures_.data()[ad]) * (num_attributes + 1);
        const int64_t* window = windows_.data() + 2 * static_cast<size_t>(signature[num_attributes]);
        if (request.at < window[0] || request.at >= window[1]) {
            reasons |= uint64_t{1} << kWindow;
            if (stop_at_first) return reasons;
        }
        for (size_t a = 0; a < num_attributes; ++a) {
            if (signature[a] == 0 || accepts(slot_[a], signature[a], request.values[a])) continue;
            reasons |= uint64_t{1} << (kFirstAttribute + a);
            if (stop_at_first) return reasons;
        }
        return reasons;
    }

    bool accepts(Slot slot, int32_t rule, const RequestValue& value) const {
        if (!value.known) return false;
        if (slot.is_range) {
            const RangeRules& rules = ranges_[slot.position];
            return rules.min.data()[rule] <= value.number && value.number <= rules.max.data()[rule];
        }
        const ValueRules& rules = sets_[slot.position];
        const size_t row = static_cast<size_t>(rule);
        const int32_t* included = rules.include_values.data();
        const int32_t* excluded = rules.exclude_values.data();
        const int64_t first = rules.include_offsets[row], last = rules.include_offsets[row + 1];
        return (first == last || value.carries_any(included + first, included + last)) &&
               !value.carries_any(excluded + rules.exclude_offsets[row],
                                  excluded + rules.exclude_offsets[row + 1]);
    }

    In2<int32_t> signatures_;
    In1<int32_t> ad_signatures_;
    In2<int64_t> windows_;
    OffsetReader sid_ad_offsets_;
    std::vector<RangeRules> ranges_;
    std::vector<ValueRules> sets_;
    std::vector<Slot> slot_;  // attribute -> its kind and place in ranges_ or sets_
};

}  // namespace

void bind_filter(nb::module_& module) {
    nb::class_<AdFilter>(module, "AdFilter", "Decides ads by their own rules; see grace.index.filter.")
        .def(nb::init<In2<int32_t>, In1<int32_t>, In2<int64_t>, Offsets, nb::list>(),
             nb::arg("signatures"), nb::arg("ad_signatures"), nb::arg("windows"),
             nb::arg("sid_ad_offsets"), nb::arg("rules"))
        .def("explain", &AdFilter::explain, nb::arg("positions"), nb::arg("state"), nb::arg("at"),
             nb::arg("known"), nb::arg("numbers"), nb::arg("value_ids"))
        .def("expand", &AdFilter::expand, nb::arg("sids"), nb::arg("state"), nb::arg("at"),
             nb::arg("known"), nb::arg("numbers"), nb::arg("value_ids"))
        .def("find", &AdFilter::find, nb::arg("tokens"), nb::arg("nodes"), nb::arg("scores"),
             nb::arg("first_leaf"), nb::arg("state"), nb::arg("requests"), nb::arg("top_k"),
             nb::arg("workers"));
}
