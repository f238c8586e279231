// Whether a fast JSON parser has lost nothing that a strict one would refuse: keys given twice, of which
// it keeps one; integers past 64 bits, of which it makes floats; nesting; numbers of absurd length.

#include "json_check.h"

#include <cmath>
#include <cstring>

namespace {

constexpr double kPast64Bits = 9223372036854775808.0;  // an integer that became a float is this large

// Counts the members of all objects; false where something nests too deep or may be no float.
bool count_members(PyObject* value, int64_t depth_left, size_t& members) {
    if (PyFloat_CheckExact(value)) return std::abs(PyFloat_AS_DOUBLE(value)) < kPast64Bits;
    if (PyDict_CheckExact(value)) {
        if (depth_left == 0) return false;
        members += static_cast<size_t>(PyDict_GET_SIZE(value));
        PyObject *key, *member;
        Py_ssize_t position = 0;
        while (PyDict_Next(value, &position, &key, &member))
            if (!count_members(member, depth_left - 1, members)) return false;
    } else if (PyList_CheckExact(value)) {
        if (depth_left == 0) return false;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i)
            if (!count_members(PyList_GET_ITEM(value, i), depth_left - 1, members)) return false;
    }
    return true;
}

// The end of a string that begins after a quote at `at`.
const char* string_end(const char* at, const char* end) {
    const char* first = at + 1;
    for (const char* quote = first;; ++quote) {
        quote = static_cast<const char*>(std::memchr(quote, '"', end - quote));
        if (quote == nullptr) return end - 1;
        const char* before = quote;
        while (before > first && before[-1] == '\\') --before;
        if ((quote - before) % 2 == 0) return quote;
    }
}

// Counts colons outside strings; false where something between them is longer than a number may be.
bool count_colons(const char* at, const char* end, size_t longest, size_t& colons) {
    const char* token = at;  // what began last
    const auto is_short = [&] { return at - token <= static_cast<ptrdiff_t>(longest); };
    for (; at < end; ++at) {
        switch (*at) {
            case '"': at = string_end(at, end); break;
            case ':': ++colons; [[fallthrough]];
            case ',': case '[': case ']': case '{': case '}': case ' ': case '\n': case '\r': case '\t':
                if (!is_short()) return false;
                break;
            default: continue;  // of a number or a word
        }
        token = at + 1;
    }
    return is_short();
}

// Args: what was parsed; what came of it; how deep it may nest; characters of a number.
bool json_is_plain(nb::bytes body, nb::handle value, int64_t max_depth, size_t max_number_chars) {
    size_t members = 0, colons = 0;
    return count_members(value.ptr(), max_depth, members) &&
           count_colons(body.c_str(), body.c_str() + body.size(), max_number_chars, colons) &&
           members == colons;
}

}  // namespace

void bind_json_check(nb::module_& module) {
    module.def("json_is_plain", &json_is_plain, nb::arg("body"), nb::arg("value").none(),
               nb::arg("max_depth"), nb::arg("max_number_chars"));
}
