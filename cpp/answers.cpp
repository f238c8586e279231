// What a server sends, as bytes: the ads of an answer as JSON, or their ids as a BYTES tensor of the
// Open Inference Protocol. Both read the index's ids where they lie; no object is made of an ad.

#include "answers.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "arrays.h"
#include "threads.h"

namespace {

// Ids that are texts: UTF-8 bytes one after the other, and N + 1 bounds.
struct TextIds {
    In1<uint8_t> text;
    In1<int64_t> offsets;

    int64_t size() const { return static_cast<int64_t>(offsets.shape(0)) - 1; }
    std::string_view operator[](int64_t ad) const {
        const int64_t first = offsets.data()[ad], last = offsets.data()[ad + 1];
        return {reinterpret_cast<const char*>(text.data()) + first, static_cast<size_t>(last - first)};
    }
};

struct IntegerIds {
    In1<int64_t> values;

    int64_t size() const { return static_cast<int64_t>(values.shape(0)); }
};

constexpr size_t kMostDigits = 20, kMostScore = 20;  // characters of an int64, of a float32

// A text that is being written. Nothing is checked as it grows: whoever makes it says the most it takes.
class Text {
public:
    Text() = default;
    explicit Text(size_t most) : begin_(new char[most]), end_(begin_.get()) {}

    void add(std::string_view piece) {
        std::memcpy(end_, piece.data(), piece.size());
        end_ += piece.size();
    }
    void add(char c) { *end_++ = c; }
    template <typename Number>
    void add_number(Number value) {
        end_ = std::to_chars(end_, end_ + kMostDigits, value).ptr;
    }
    // The shortest that reads back as the same float32, and as a float where a reader tells them from
    // integers.
    void add_score(float score) {
        if (!std::isfinite(score)) throw std::invalid_argument("JSON holds finite scores only");
        const char* first = end_;
        add_number(score);
        if (std::string_view(first, static_cast<size_t>(end_ - first)).find_first_of(".e") == std::string::npos)
            add(".0");
    }

    size_t size() const { return static_cast<size_t>(end_ - begin_.get()); }
    const char* data() const { return begin_.get(); }

private:
    std::unique_ptr<char[]> begin_;
    char* end_ = nullptr;
};

// A JSON string. The text is UTF-8 as it stands in the index, so only what JSON reserves is escaped.
void add_id(Text& out, const TextIds& ids, int64_t ad) {
    constexpr char kHex[] = "0123456789abcdef";
    out.add('"');
    for (const char c : ids[ad]) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out.add('\\');
            out.add(c);
        } else if (byte < 0x20) {
            out.add("\\u00");
            out.add(kHex[byte >> 4]);
            out.add(kHex[byte & 15]);
        } else {
            out.add(c);
        }
    }
    out.add('"');
}
void add_id(Text& out, const IntegerIds& ids, int64_t ad) { out.add_number(ids.values.data()[ad]); }

size_t most_of_id(const TextIds& ids, int64_t ad) { return 6 * ids[ad].size() + 2; }
size_t most_of_id(const IntegerIds&, int64_t) { return kMostDigits; }

template <typename Number>
void append_number(std::string& out, Number value) {
    char digits[32];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

template <typename Ids>
int64_t checked(const Ids& ids, int64_t ad) {
    if (ad < 0 || ad >= ids.size()) throw std::out_of_range("no ad at position " + std::to_string(ad));
    return ad;
}

// The pieces of one answer: [{"ad_id": …, "sid": […], "score": …}, …] comes between two that the caller
// has made.
struct Pieces {
    nb::bytes before;
    In1<int64_t> positions;
    In2<int64_t> sids;
    In1<float> scores;
    nb::bytes after;
};

std::vector<Pieces> pieces_of(const nb::list& answers) {
    std::vector<Pieces> pieces;
    pieces.reserve(answers.size());
    for (nb::handle answer : answers) {
        auto parts = nb::cast<nb::tuple>(answer);
        const Pieces& one = pieces.emplace_back(Pieces{
            nb::cast<nb::bytes>(parts[0]), nb::cast<In1<int64_t>>(parts[1]), nb::cast<In2<int64_t>>(parts[2]),
            nb::cast<In1<float>>(parts[3]), nb::cast<nb::bytes>(parts[4])});
        if (one.sids.shape(0) != one.positions.shape(0) || one.scores.shape(0) != one.positions.shape(0))
            throw std::invalid_argument("every ad needs one SID and one score");
    }
    return pieces;
}

template <typename Ids>
Text text_of(const Ids& ids, const Pieces& pieces) {
    constexpr std::string_view kAd = ",{\"ad_id\":", kSid = ",\"sid\":[", kScore = "],\"score\":";
    const size_t num_ads = pieces.positions.shape(0), length = pieces.sids.shape(1);
    const size_t around = kAd.size() + kSid.size() + kScore.size() + 1;
    size_t most = pieces.before.size() + pieces.after.size() + 2;
    most += num_ads * (around + length * (kMostDigits + 1) + kMostScore);
    for (size_t i = 0; i < num_ads; ++i) most += most_of_id(ids, checked(ids, pieces.positions.data()[i]));
    Text out(most);
    out.add({pieces.before.c_str(), pieces.before.size()});
    out.add('[');
    for (size_t i = 0; i < num_ads; ++i) {
        out.add(i == 0 ? kAd.substr(1) : kAd);
        add_id(out, ids, pieces.positions.data()[i]);
        out.add(kSid);
        for (size_t level = 0; level < length; ++level) {
            if (level != 0) out.add(',');
            out.add_number(pieces.sids.data()[i * length + level]);
        }
        out.add(kScore);
        out.add_score(pieces.scores.data()[i]);
        out.add('}');
    }
    out.add(']');
    out.add({pieces.after.c_str(), pieces.after.size()});
    return out;
}

// The answers of a batch, each as bytes. The interpreter is held only while they are allocated.
template <typename Ids>
nb::list answers_json(const nb::list& answers, const Ids& ids, int workers) {
    const std::vector<Pieces> pieces = pieces_of(answers);
    std::vector<Text> texts(pieces.size());
    {
        nb::gil_scoped_release release;
        each_in_parallel(pieces.size(), workers, [&](size_t i) { texts[i] = text_of(ids, pieces[i]); });
    }
    nb::list written;
    std::vector<char*> places;
    for (const Text& text : texts) {
        nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(text.size())));
        if (!bytes.is_valid()) throw nb::python_error();
        places.push_back(PyBytes_AS_STRING(bytes.ptr()));
        written.append(bytes);
    }
    {
        nb::gil_scoped_release release;  // nobody else has the new bytes yet
        for (size_t i = 0; i < texts.size(); ++i) std::memcpy(places[i], texts[i].data(), texts[i].size());
    }
    return written;
}

void append_length(std::string& out, size_t length) {
    for (int byte = 0; byte < 4; ++byte) out += static_cast<char>(length >> (8 * byte) & 0xff);
}

void append_bytes(std::string& out, const TextIds& ids, int64_t ad) {
    const std::string_view text = ids[ad];
    append_length(out, text.size());
    out.append(text);
}

void append_bytes(std::string& out, const IntegerIds& ids, int64_t ad) {
    const size_t at = out.size();
    out.append(4, '\0');
    append_number(out, ids.values.data()[ad]);
    std::string length;
    append_length(length, out.size() - at - 4);
    out.replace(at, 4, length);
}

// Each id as its length, 4 bytes little-endian, and its UTF-8 bytes.
template <typename Ids>
nb::bytes id_bytes(const Ids& ids, In1<int64_t> positions) {
    std::string out;
    {
        nb::gil_scoped_release release;
        out.reserve(positions.shape(0) * 24);
        for (size_t i = 0; i < positions.shape(0); ++i)
            append_bytes(out, ids, checked(ids, positions.data()[i]));
    }
    return nb::bytes(out.data(), out.size());
}

nb::list text_answers_json(nb::list answers, In1<uint8_t> text, In1<int64_t> offsets, int workers) {
    return answers_json(answers, TextIds{text, offsets}, workers);
}

nb::list integer_answers_json(nb::list answers, In1<int64_t> values, int workers) {
    return answers_json(answers, IntegerIds{values}, workers);
}

nb::bytes text_id_bytes(In1<uint8_t> text, In1<int64_t> offsets, In1<int64_t> positions) {
    return id_bytes(TextIds{text, offsets}, positions);
}

nb::bytes integer_id_bytes(In1<int64_t> values, In1<int64_t> positions) {
    return id_bytes(IntegerIds{values}, positions);
}

}  // namespace

void bind_answers(nb::module_& module) {
    module.def("answers_json", &text_answers_json, nb::arg("answers"), nb::arg("text"),
               nb::arg("offsets"), nb::arg("workers"));
    module.def("answers_json", &integer_answers_json, nb::arg("answers"), nb::arg("values"),
               nb::arg("workers"));
    module.def("id_bytes", &text_id_bytes, nb::arg("text"), nb::arg("offsets"), nb::arg("positions"));
    module.def("id_bytes", &integer_id_bytes, nb::arg("values"), nb::arg("positions"));
}
