// The exact matcher's eager form: rules, signatures, SIDs and prefixes, a word of 32 requests each.
// What each function returns is specified by the references in grace/kernels.

#include "exact.h"

#include <algorithm>

#include "offsets.h"
#include "threads.h"
#include "vectors.h"

namespace {

using Words = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // written
using Column = nb::ndarray<const int32_t, nb::ndim<1>, nb::device::cpu>;  // with any stride

void check_size(const char* what, size_t size, size_t expected) {
    if (size != expected)
        throw std::invalid_argument(std::string(what) + " must have " + std::to_string(expected) +
                                    " entries, got " + std::to_string(size));
}

inline int32_t or_of(const int32_t* first, const int32_t* last) {
    int32_t word = 0;
    for (; first < last; ++first) word |= *first;
    return word;
}

// Most segments hold one or two words; both ends without a branch, what lies between them after.
template <typename Offset>
void segment_or_range(const int32_t* words, const Offset* offsets, int64_t shift, int32_t* out,
                      size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
        const int64_t begin = offsets[i] + shift, end = offsets[i + 1] + shift;
        if (end - begin <= 2)
            out[i] = end > begin ? words[begin] | words[end - 1] : 0;
        else
            out[i] = or_of(words + begin, words + end);
    }
}

void segment_or(In1<int32_t> words, Offsets offsets, int64_t shift, Words out, int workers) {
    check_size("out", out.shape(0), num_segments(offsets));
    with_offsets(offsets, [&](const auto* bounds) {
        nb::gil_scoped_release release;
        over_range(out.shape(0), workers, [&](size_t first, size_t last) {
            segment_or_range(words.data(), bounds, shift, out.data(), first, last);
        });
    });
}

template <typename Offset>
inline int32_t carried_by(const Offset* offsets, const int32_t* values, const int32_t* carried,
                          size_t rule) {
    int32_t word = 0;
    for (Offset i = offsets[rule]; i < offsets[rule + 1]; ++i) word |= carried[values[i]];
    return word;
}

void value_words(Offsets include_offsets, In1<int32_t> include_values, Offsets exclude_offsets,
                 In1<int32_t> exclude_values, In1<int32_t> carried, int32_t known, int32_t everyone,
                 Words out, int workers) {
    check_size("include_offsets", num_segments(include_offsets), out.shape(0));
    check_size("exclude_offsets", num_segments(exclude_offsets), out.shape(0));
    with_offsets(include_offsets, [&](const auto* include) {
        with_offsets(exclude_offsets, [&](const auto* exclude) {
            nb::gil_scoped_release release;
            const int32_t *included = include_values.data(), *excluded = exclude_values.data();
            const int32_t* requests = carried.data();
            int32_t* words = out.data();
            over_range(out.shape(0), workers, [&](size_t first, size_t last) {
                for (size_t rule = first; rule < last; ++rule) {
                    int32_t word = known;
                    if (include[rule] < include[rule + 1])
                        word &= carried_by(include, included, requests, rule);
                    if (exclude[rule] < exclude[rule + 1])
                        word &= ~carried_by(exclude, excluded, requests, rule);
                    words[rule] = word;
                }
            });
            if (out.shape(0) > 0) words[0] = everyone;
        });
    });
}

// One request after the other over a block of rules that stays in the nearest cache.
constexpr size_t kRulesAtOnce = 1024;

#define GRACE_INTERVALS(name, T, upper)                                                          \
    GRACE_WIDEST_VECTORS                                                                         \
    void name(const T* low, const T* high, const T* points, size_t requests, int32_t* out,       \
              size_t rules) {                                                                    \
        for (size_t block = 0; block < rules; block += kRulesAtOnce) {                           \
            const size_t end = std::min(rules, block + kRulesAtOnce);                            \
            std::fill(out + block, out + end, 0);                                                \
            for (size_t b = 0; b < requests; ++b) {                                              \
                const T point = points[b];                                                       \
                const int32_t bit = static_cast<int32_t>(uint32_t{1} << b);                      \
                for (size_t rule = block; rule < end; ++rule)                                    \
                    out[rule] |= (low[rule] <= point) & (point upper high[rule]) ? bit : 0;      \
            }                                                                                    \
        }                                                                                        \
    }

GRACE_INTERVALS(closed_ranges, double, <=)
GRACE_INTERVALS(open_ranges, double, <)
GRACE_INTERVALS(closed_windows, int64_t, <=)
GRACE_INTERVALS(open_windows, int64_t, <)
#undef GRACE_INTERVALS

template <typename T, auto closed_words, auto open_words>
void interval_words(In1<T> low, In1<T> high, In1<T> points, bool closed, int32_t everyone,
                    Words out, int workers) {
    check_size("low", low.shape(0), out.shape(0));
    check_size("high", high.shape(0), out.shape(0));
    nb::gil_scoped_release release;
    over_range(out.shape(0), workers, [&](size_t first, size_t last) {
        (closed ? closed_words : open_words)(low.data() + first, high.data() + first, points.data(),
                                             points.shape(0), out.data() + first, last - first);
    });
    if (out.shape(0) > 0) out.data()[0] = everyone;
}

struct SignatureColumn {
    const int32_t* rules;
    int64_t stride;
    const int32_t* words;
};

void signature_words(nb::list columns, nb::list tables, Words out, int workers) {
    check_size("tables", tables.size(), columns.size());
    std::vector<SignatureColumn> asked;
    std::vector<nb::object> alive;
    for (size_t c = 0; c < columns.size(); ++c) {
        auto column = nb::cast<Column>(columns[c]);
        auto table = nb::cast<In1<int32_t>>(tables[c]);
        check_size("a column", column.shape(0), out.shape(0));
        asked.push_back({column.data(), column.stride(0), table.data()});
        alive.push_back(nb::cast<nb::object>(columns[c]));
        alive.push_back(nb::cast<nb::object>(tables[c]));
    }
    nb::gil_scoped_release release;
    over_range(out.shape(0), workers, [&](size_t first, size_t last) {
        // Block by block, so that the rows of the matrix are read from memory once.
        for (size_t block = first; block < last; block += kRulesAtOnce) {
            const size_t end = std::min(last, block + kRulesAtOnce);
            int32_t* words = out.data();
            std::fill(words + block, words + end, -1);
            for (const SignatureColumn& column : asked)
                for (size_t i = block; i < end; ++i)
                    words[i] &= column.words[column.rules[static_cast<int64_t>(i) * column.stride]];
        }
    });
}

constexpr size_t kSidsAtOnce = 1024;
constexpr size_t kAdsAtOnce = 4 * kSidsAtOnce;

GRACE_WIDEST_VECTORS
void live_words(const int32_t* signature_words, const int32_t* ad_signatures,
                const uint8_t* ad_state, size_t ads, int32_t* out) {
    for (size_t i = 0; i < ads; ++i)
        out[i] = ad_state[i] == 0 ? signature_words[ad_signatures[i]] : 0;
}

template <typename Offset>
void leaf_words_range(const int32_t* signature_words, const int32_t* ad_signatures,
                      const uint8_t* ad_state, const Offset* offsets, int32_t* out, size_t first,
                      size_t last) {
    int32_t words[kAdsAtOnce];  // of the ads of some SIDs, in the nearest cache
    for (size_t block = first; block < last;) {
        const int64_t ads = offsets[block];
        size_t end = std::min(last, block + kSidsAtOnce);
        while (end > block + 1 && offsets[end] - ads > static_cast<int64_t>(kAdsAtOnce))
            end = block + (end - block) / 2;
        if (end == block + 1) {  // one SID, perhaps with more ads than the buffer holds
            int32_t word = 0;
            for (int64_t ad = ads; ad < offsets[end]; ++ad)
                if (ad_state[ad] == 0) word |= signature_words[ad_signatures[ad]];
            out[block] = word;
        } else {
            live_words(signature_words, ad_signatures + ads, ad_state + ads,
                       static_cast<size_t>(offsets[end] - ads), words);
            segment_or_range(words, offsets, -ads, out, block, end);
        }
        block = end;
    }
}

void leaf_words(In1<int32_t> signature_words, In1<int32_t> ad_signatures, In1<uint8_t> ad_state,
                Offsets sid_ad_offsets, Words out, int workers) {
    check_size("sid_ad_offsets", num_segments(sid_ad_offsets), out.shape(0));
    check_size("ad_state", ad_state.shape(0), ad_signatures.shape(0));
    with_offsets(sid_ad_offsets, [&](const auto* offsets) {
        nb::gil_scoped_release release;
        over_range(out.shape(0), workers, [&](size_t first, size_t last) {
            leaf_words_range(signature_words.data(), ad_signatures.data(), ad_state.data(), offsets,
                             out.data(), first, last);
        });
    });
}

}  // namespace

void bind_exact(nb::module_& module) {
    module.def("segment_or", &segment_or, nb::arg("words"), nb::arg("offsets"), nb::arg("shift"),
               nb::arg("out"), nb::arg("workers"));
    module.def("value_words", &value_words, nb::arg("include_offsets"), nb::arg("include_values"),
               nb::arg("exclude_offsets"), nb::arg("exclude_values"), nb::arg("carried"),
               nb::arg("known"), nb::arg("everyone"), nb::arg("out"), nb::arg("workers"));
    module.def("range_words", &interval_words<double, closed_ranges, open_ranges>, nb::arg("low"),
               nb::arg("high"), nb::arg("points"), nb::arg("closed"), nb::arg("everyone"),
               nb::arg("out"), nb::arg("workers"));
    module.def("window_words", &interval_words<int64_t, closed_windows, open_windows>,
               nb::arg("low"), nb::arg("high"), nb::arg("points"), nb::arg("closed"),
               nb::arg("everyone"), nb::arg("out"), nb::arg("workers"));
    module.def("signature_words", &signature_words, nb::arg("columns"), nb::arg("tables"),
               nb::arg("out"), nb::arg("workers"));
    module.def("leaf_words", &leaf_words, nb::arg("signature_words"), nb::arg("ad_signatures"),
               nb::arg("ad_state"), nb::arg("sid_ad_offsets"), nb::arg("out"), nb::arg("workers"));
}
