// One decode step's constraint and selection on the CPU: visit the children that each live beam may
// take, score them, keep the best `width`. The plain torch version in
// grace/kernels/constrained_select/reference.py is the specification; both do the same float32 and
// float64 operations in the same order, so their results are bit-equal.

#include "select.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

#include "offsets.h"

namespace {

struct Candidate {
    float score;
    int32_t beam;
    int64_t node;
};

// Higher scores first; equal scores in node order, which inside a level is SID order.
inline bool before(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.node < b.node);
}

// Keeps the best `width` candidates of a stream. Invariant: no candidate that was dropped comes
// before any of the best `width` seen so far.
class Best {
public:
    explicit Best(size_t width) : width_(width) { pool_.reserve(2 * width); }

    void clear() {
        pool_.clear();
        bound_ = -std::numeric_limits<float>::infinity();
    }

    void offer(float score, int32_t beam, int64_t node) {
        // -inf never passes: it is what an impossible token scores.
        if (!(score > bound_) && !(score == bound_ && std::isfinite(score))) return;
        pool_.push_back({score, beam, node});
        if (pool_.size() == 2 * width_) shrink();
    }

    const std::vector<Candidate>& sorted() {
        if (pool_.size() > width_) shrink();
        std::sort(pool_.begin(), pool_.end(), before);
        return pool_;
    }

private:
    void shrink() {
        std::nth_element(pool_.begin(), pool_.begin() + static_cast<ptrdiff_t>(width_) - 1,
                         pool_.end(), before);
        pool_.resize(width_);
        bound_ = pool_.back().score;
    }

    size_t width_;
    std::vector<Candidate> pool_;
    float bound_ = -std::numeric_limits<float>::infinity();
};

nb::tuple constrained_select(In3<float> columns, In2<double> logsumexp, In2<float> scores,
                             In2<int64_t> nodes, Offsets child_offsets, In1<int32_t> child_tokens,
                             std::optional<In1<int32_t>> words, std::optional<In3<int32_t>> allowed,
                             int64_t width) {
    const size_t batch = columns.shape(0), beams = columns.shape(1), vocab = columns.shape(2);
    const size_t keep = static_cast<size_t>(width);
    if (width < 1) throw std::invalid_argument("width must be at least 1");
    std::vector<int64_t> parents(batch * keep, 0), tokens(batch * keep, 0), chosen(batch * keep, -1);
    std::vector<float> totals(batch * keep, -std::numeric_limits<float>::infinity());
    {
        nb::gil_scoped_release release;
        const OffsetReader offsets(child_offsets);
        const int32_t* child_token = child_tokens.data();
        const int32_t* word = words ? words->data() : nullptr;
        const size_t child_words = allowed ? allowed->shape(2) : 0;
        Best best(keep);
        for (size_t b = 0; b < batch; ++b) {
            best.clear();
            for (size_t m = 0; m < beams; ++m) {
                const size_t row = b * beams + m;
                const int64_t node = nodes.data()[row];
                const double normaliser = logsumexp.data()[row];
                if (node < 0 || !std::isfinite(normaliser)) continue;
                const float score = scores.data()[row];
                const float* logits = columns.data() + row * vocab;
                const int32_t* bits = allowed ? allowed->data() + row * child_words : nullptr;
                const int64_t first = offsets[static_cast<size_t>(node)];
                const int64_t last = offsets[static_cast<size_t>(node) + 1];
                if (bits && static_cast<size_t>(last - first) > child_words * 32)
                    throw std::invalid_argument("allowed has too few words for a node's children");
                for (int64_t entry = first; entry < last; ++entry) {
                    if (word && !(static_cast<uint32_t>(word[entry + 1]) >> b & 1)) continue;
                    if (bits && !(bits[(entry - first) / 32] >> (entry - first) % 32 & 1)) continue;
                    const double logit = logits[child_token[entry]];
                    const float total = score + static_cast<float>(logit - normaliser);
                    best.offer(total, static_cast<int32_t>(m), entry + 1);
                }
            }
            size_t slot = b * keep;
            for (const Candidate& candidate : best.sorted()) {
                parents[slot] = candidate.beam;
                tokens[slot] = child_token[candidate.node - 1];
                chosen[slot] = candidate.node;
                totals[slot] = candidate.score;
                ++slot;
            }
        }
    }
    return nb::make_tuple(to_numpy(std::move(parents), batch, keep), to_numpy(std::move(tokens), batch, keep),
                          to_numpy(std::move(chosen), batch, keep), to_numpy(std::move(totals), batch, keep));
}

}  // namespace

void bind_select(nb::module_& module) {
    module.def("constrained_select", &constrained_select, nb::arg("columns"), nb::arg("logsumexp"),
               nb::arg("scores"), nb::arg("nodes"), nb::arg("child_offsets"), nb::arg("child_tokens"),
               nb::arg("words").none(), nb::arg("allowed").none(), nb::arg("width"));
}
