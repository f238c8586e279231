// The features of a batch of requests, as the tensors that a model reads: what is plain (see plain.h) is
// read here, in one call; grace/model/fields.py and feature_table.py define what is right.

#include "features.h"

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <limits>
#include <unordered_map>

#include "iso_time.h"
#include "lookup.h"
#include "plain.h"
#include "request_texts.h"

namespace {

// As in grace/model/fields.py.
constexpr int64_t kPadding = 0, kMissing = 1, kUnknown = 2, kFirstValue = 3;
constexpr double kMaxDeviations = 8.0, kMaxNumber = 1e100, kMaxTime = 1e11;
constexpr double kNotSaid = std::numeric_limits<double>::quiet_NaN();

template <typename T>
using Column = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

// The memory of a column of n rows, which is to be written.
template <typename T>
T* column_of(nb::handle array, size_t n, size_t width) {
    Column<T> column;
    if (!nb::try_cast(array, column, false) || column.size() != n * width)
        throw std::invalid_argument("a column is of another dtype, size or layout");
    return column.data();
}

class Vocabulary {
public:
    explicit Vocabulary(nb::handle values) {
        for (nb::handle value : values)
            rows_.emplace(nb::cast<std::string_view>(value), kFirstValue + static_cast<int64_t>(rows_.size()));
    }

    int64_t row(std::string_view value) const {
        const auto found = rows_.find(value);
        return found == rows_.end() ? kUnknown : found->second;
    }

private:
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const { return xxh64(text); }
    };
    std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> rows_;
};

enum class Kind { categorical, numeric, bag, sequence };

struct Field {
    Kind kind;
    Vocabulary vocabulary;  // of a sequence, its actions
    double mean, std;       // of a number
    size_t max_length;      // of a bag or a sequence
};

struct Event {
    int64_t ad;  // an integer id, or the number of a copied text
    int64_t action;
    double at_s;
};

struct Columns {
    int64_t* rows = nullptr;  // of a category or a bag; a sequence's actions
    float* numbers = nullptr;
    int64_t *tokens = nullptr, *gaps = nullptr;
    bool* valid = nullptr;
};

struct Span {
    size_t first = 0, last = 0;
};

struct Batch {
    std::vector<Columns> columns;  // of every field
    std::vector<Span> histories;   // of every row and field, into `events`
    std::vector<Event> events;
    TextCopies texts;
    Names names, event_keys;  // of this call alone: they remember where they stopped
    Spelling spelling;
};

class FeatureReader {
public:
    // Per field its name, its kind, its values, mean, std and max_length; the arrays of the index's
    // ad ids, the SID of each ad, all SIDs.
    FeatureReader(nb::list fields, nb::tuple ad_ids, In1<int64_t> ad_sid, In2<int32_t> sids)
        : ad_sid_(ad_sid), sids_(sids) {
        for (const char* key : {"ad_id", "action", "at"}) event_keys_.add(key);
        for (nb::handle entry : fields) {
            auto [name, kind, values, mean, std, max_length] = nb::cast<
                std::tuple<std::string_view, std::string_view, nb::object, double, double, size_t>>(entry);
            names_.add(name);
            fields_.push_back({kind_of(kind), Vocabulary(values), mean, std, max_length});
        }
        if (ad_ids.size() == 2)
            integers_.emplace(nb::cast<In1<int64_t>>(ad_ids[0]), nb::cast<Offsets>(ad_ids[1]));
        else
            texts_.emplace(nb::cast<In1<int64_t>>(ad_ids[0]), nb::cast<Offsets>(ad_ids[1]),
                           nb::cast<In1<uint8_t>>(ad_ids[2]), nb::cast<In1<int64_t>>(ad_ids[3]));
    }

    // Writes row i of every column for request i, and how many of its events the index does not know.
    // Returns, as bytes, whether it was plain; the row of one that was not means nothing.
    nb::bytes read(nb::list features, nb::list columns, nb::object unknown_items) const {
        const size_t n = features.size();
        int64_t* unknown = column_of<int64_t>(unknown_items, n, 1);
        Batch batch = batch_of(columns, n);
        std::string plain(n, '\0');
        for (size_t i = 0; i < n; ++i) plain[i] = read_row(PyList_GET_ITEM(features.ptr(), i), i, batch);
        {
            nb::gil_scoped_release release;
            resolve_all(batch, unknown, n);
        }
        return nb::bytes(plain.data(), plain.size());
    }

    // The same of texts; the interpreter is not held.
    nb::bytes read_texts(const RequestTexts& texts, nb::list columns, nb::object unknown_items) const {
        const size_t n = texts.size();
        int64_t* unknown = column_of<int64_t>(unknown_items, n, 1);
        Batch batch = batch_of(columns, n);
        std::string plain(n, '\0');
        {
            nb::gil_scoped_release release;
            for (size_t i = 0; i < n; ++i) plain[i] = texts[i].plain && read_row(texts[i].features, i, batch);
            resolve_all(batch, unknown, n);
        }
        return nb::bytes(plain.data(), plain.size());
    }

private:
    static Kind kind_of(std::string_view name) {
        if (name == "categorical") return Kind::categorical;
        if (name == "numeric") return Kind::numeric;
        return name == "bag" ? Kind::bag : Kind::sequence;
    }

    std::vector<Columns> take_columns(const nb::list& arrays, size_t n) const {
        std::vector<Columns> columns(fields_.size());
        size_t at = 0;
        const auto next = [&]() -> nb::handle {
            if (at == arrays.size()) throw std::invalid_argument("expected more columns");
            return PyList_GET_ITEM(arrays.ptr(), at++);
        };
        for (size_t f = 0; f < fields_.size(); ++f) {
            const size_t length = fields_[f].max_length;
            switch (fields_[f].kind) {
                case Kind::categorical: columns[f].rows = column_of<int64_t>(next(), n, 1); break;
                case Kind::numeric: columns[f].numbers = column_of<float>(next(), n, 1); break;
                case Kind::bag: columns[f].rows = column_of<int64_t>(next(), n, length); break;
                case Kind::sequence:
                    columns[f].tokens = column_of<int64_t>(next(), n, length * sids_.shape(1));
                    columns[f].rows = column_of<int64_t>(next(), n, length);
                    columns[f].gaps = column_of<int64_t>(next(), n, length);
                    columns[f].valid = column_of<bool>(next(), n, length);
            }
        }
        return columns;
    }

    Batch batch_of(const nb::list& columns, size_t n) const {
        return {take_columns(columns, n), std::vector<Span>(n * fields_.size()), {}, {}, names_, event_keys_, {}};
    }

    // Whether request i's features are plain; nothing of them stays in the batch if they are not.
    template <typename V>
    bool read_row(V features, size_t i, Batch& batch) const {
        const size_t events = batch.events.size(), texts = batch.texts.size(), width = fields_.size();
        if (read_one(features, i, batch)) return true;
        std::fill_n(batch.histories.data() + i * width, width, Span{});
        batch.events.resize(events);
        batch.texts.cut(texts);
        return false;
    }

    void resolve_all(const Batch& batch, int64_t* unknown, size_t n) const {
        std::vector<std::pair<int64_t, Event>> known;
        for (size_t i = 0; i < n; ++i) {
            unknown[i] = 0;
            for (size_t f = 0; f < fields_.size(); ++f)
                if (fields_[f].kind == Kind::sequence) unknown[i] += resolve(batch, i, f, known);
        }
    }

    template <typename V>
    bool read_one(V features, size_t i, Batch& batch) const {
        for (size_t f = 0; f < fields_.size(); ++f) {  // until the request says otherwise
            const Field& field = fields_[f];
            if (field.kind == Kind::numeric) batch.columns[f].numbers[i] = static_cast<float>(kNotSaid);
            if (field.kind == Kind::categorical) batch.columns[f].rows[i] = kMissing;
            if (field.kind == Kind::bag) {
                int64_t* rows = batch.columns[f].rows + i * field.max_length;
                std::fill_n(rows, field.max_length, kPadding);
                rows[0] = kMissing;
            }
        }
        if (features == nullptr) return true;
        return plain_items(features, batch.names, [&](int f, V value) {
            if (is_null(value)) return true;
            const Field& field = fields_[f];
            switch (field.kind) {
                case Kind::categorical: return read_value(field, value, batch.columns[f].rows[i], batch);
                case Kind::numeric: return read_number(field, value, batch.columns[f].numbers[i]);
                case Kind::bag: return read_bag(field, value, batch.columns[f].rows + i * field.max_length, batch);
                default: return read_history(field, value, batch, i * fields_.size() + f);
            }
        });
    }

    template <typename V>
    static bool read_value(const Field& field, V value, int64_t& row, Batch& batch) {
        std::string_view text;
        if (!batch.spelling.of(value, text)) return false;
        row = field.vocabulary.row(text);
        return true;
    }

    template <typename V>
    static bool read_number(const Field& field, V value, float& number) {
        double plain;
        if (!plain_number(value, plain) || std::abs(plain) > kMaxNumber) return false;
        const double standardised = (plain - field.mean) / field.std;
        number = static_cast<float>(std::min(std::max(standardised, -kMaxDeviations), kMaxDeviations));
        return true;
    }

    template <typename V>
    static bool read_bag(const Field& field, V value, int64_t* rows, Batch& batch) {
        int64_t past_the_end;  // is not read, but must be right
        size_t i = 0;
        return plain_list(value, [&](V entry) {
            int64_t& row = i < field.max_length ? rows[i] : past_the_end;
            ++i;
            return read_value(field, entry, row, batch);
        });
    }

    template <typename V>
    bool read_history(const Field& field, V value, Batch& batch, size_t place) const {
        const size_t first = batch.events.size();
        double newest_s = -std::numeric_limits<double>::infinity();
        const bool plain = plain_list(value, [&](V entry) {
            Event event{0, kMissing, kNotSaid};
            bool named = false;
            const bool known = plain_items(entry, batch.event_keys, [&](int key, V part) {
                if (key == 0) return named = read_ad(part, event.ad, batch);
                if (is_null(part)) return true;
                return key == 1 ? read_value(field, part, event.action, batch) : read_time(part, event.at_s);
            });
            if (!known || !named || event.at_s < newest_s) return false;
            if (!std::isnan(event.at_s)) newest_s = event.at_s;
            batch.events.push_back(event);
            return true;
        });
        if (plain) batch.histories[place] = {first, batch.events.size()};
        return plain;
    }

    template <typename V>
    bool read_ad(V value, int64_t& ad, Batch& batch) const {
        if (integers_) return plain_integer(value, ad);
        std::string_view text;
        if (!plain_text(value, text)) return false;
        ad = static_cast<int64_t>(batch.texts.size());
        batch.texts.add(text);
        return true;
    }

    template <typename V>
    static bool read_time(V value, double& at_s) {
        std::string_view text;
        int64_t microseconds;
        if (plain_number(value, at_s)) return std::abs(at_s) <= kMaxTime;
        if (!plain_text(value, text) || !iso_time(text, microseconds)) return false;
        at_s = static_cast<double>(microseconds) / 1e6;
        return true;
    }

    // Writes the newest events whose ads the index knows, the last at the end; returns how many it
    // does not know.
    int64_t resolve(const Batch& batch, size_t i, size_t f, std::vector<std::pair<int64_t, Event>>& known) const {
        const Span span = batch.histories[i * fields_.size() + f];
        known.clear();
        for (size_t e = span.first; e < span.last; ++e) {
            const Event& event = batch.events[e];
            const int64_t ad = integers_ ? integers_->find(event.ad) : texts_->find(batch.texts[event.ad]);
            if (ad >= 0) known.emplace_back(ad_sid_.data()[ad], event);
        }
        const size_t length = fields_[f].max_length, levels = sids_.shape(1);
        const size_t kept = std::min(known.size(), length), padding = length - kept;
        const Columns& columns = batch.columns[f];
        int64_t* tokens = columns.tokens + i * length * levels;
        int64_t *actions = columns.rows + i * length, *gaps = columns.gaps + i * length;
        std::fill_n(tokens, padding * levels, 0);
        std::fill_n(actions, padding, kPadding);
        std::fill_n(gaps, padding, kPadding);
        std::fill_n(columns.valid + i * length, padding, false);
        std::fill_n(columns.valid + i * length + padding, kept, true);
        const auto* newest = known.data() + (known.size() - kept);
        double newest_s = -std::numeric_limits<double>::infinity();
        for (size_t k = 0; k < kept; ++k)
            if (newest[k].second.at_s > newest_s) newest_s = newest[k].second.at_s;
        for (size_t k = 0; k < kept; ++k) {
            const auto& [sid, event] = newest[k];
            std::copy_n(sids_.data() + sid * levels, levels, tokens + (padding + k) * levels);
            actions[padding + k] = event.action;
            gaps[padding + k] = std::isnan(event.at_s) ? kMissing : gap_row(newest_s - event.at_s);
        }
        return static_cast<int64_t>(span.last - span.first - known.size());
    }

    static int64_t gap_row(double gap_s) { return kFirstValue + std::ilogb(1 + gap_s); }

    Names names_, event_keys_;
    std::vector<Field> fields_;
    std::optional<IntegerLookup> integers_;
    std::optional<TextLookup> texts_;
    In1<int64_t> ad_sid_;
    In2<int32_t> sids_;
};

}  // namespace

void bind_features(nb::module_& module) {
    nb::class_<FeatureReader>(module, "FeatureReader")
        .def(nb::init<nb::list, nb::tuple, In1<int64_t>, In2<int32_t>>(), nb::arg("fields"),
             nb::arg("ad_ids"), nb::arg("ad_sid"), nb::arg("sids"))
        .def("read", &FeatureReader::read, nb::arg("features"), nb::arg("columns"),
             nb::arg("unknown_items"))
        .def("read_texts", &FeatureReader::read_texts, nb::arg("texts"), nb::arg("columns"),
             nb::arg("unknown_items"));
}
