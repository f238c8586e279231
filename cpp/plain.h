// Values as a JSON parser makes them, Python objects or nodes of a text: read without running any Python
// code, and nodes without the interpreter.
//
// Every function says whether an object is plain, that is of exactly the type that is asked for and in
// range. Whoever calls leaves what is not to the Python code that defines what is right.
#pragma once

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.h"
#include "json_text.h"

// The UTF-8 of a str; false for what UTF-8 cannot hold.
inline bool plain_text(PyObject* value, std::string_view& text) {
    if (!PyUnicode_CheckExact(value)) return false;
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(value, &size);
    if (data == nullptr) {
        PyErr_Clear();
        return false;
    }
    text = {data, static_cast<size_t>(size)};
    return true;
}

inline bool plain_text(const json::Node* value, std::string_view& text) {
    text = value->text;
    return value->type == json::Type::text;
}

// An int of 64 bits.
inline bool plain_integer(PyObject* value, int64_t& integer) {
    if (!PyLong_CheckExact(value)) return false;
    int overflow;
    integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

inline bool plain_integer(const json::Node* value, int64_t& integer) {
    integer = value->integer;
    return value->type == json::Type::integer;
}

// A finite float, or an int of 64 bits.
inline bool plain_number(PyObject* value, double& number) {
    if (PyFloat_CheckExact(value)) {
        number = PyFloat_AS_DOUBLE(value);
        return std::isfinite(number);
    }
    int64_t integer;
    if (!plain_integer(value, integer)) return false;
    number = static_cast<double>(integer);
    return true;
}

inline bool plain_number(const json::Node* value, double& number) {
    const bool whole = value->type == json::Type::integer;
    number = whole ? static_cast<double>(value->integer) : value->number;
    return whole || value->type == json::Type::number;
}

inline bool is_float(PyObject* value) { return PyFloat_CheckExact(value); }
inline bool is_float(const json::Node* value) { return value->type == json::Type::number; }

inline bool is_null(PyObject* value) { return value == Py_None; }
inline bool is_null(const json::Node* value) { return value->type == json::Type::null; }

inline bool is_list(PyObject* value) { return PyList_CheckExact(value); }
inline bool is_list(const json::Node* value) { return value->type == json::Type::list; }

// Calls use(value) for each of a list, while it returns true.
template <typename Use>
bool plain_list(PyObject* list, const Use& use) {
    if (!PyList_CheckExact(list)) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i)
        if (!use(PyList_GET_ITEM(list, i))) return false;
    return true;
}
template <typename Use>
bool plain_list(const json::Node* list, const Use& use) {
    if (list->type != json::Type::list) return false;
    for (const json::Node* value = list->first(); value != list->end(); value = value->next())
        if (!use(value)) return false;
    return true;
}

// What a str, an int or a bool is called: an int or a bool by its JSON spelling.
class Spelling {
public:
    bool of(PyObject* value, std::string_view& text) {
        if (PyUnicode_CheckExact(value)) return plain_text(value, text);
        if (PyBool_Check(value)) {
            text = value == Py_True ? "true" : "false";
            return true;
        }
        int64_t integer;
        return plain_integer(value, integer) && of(integer, text);
    }
    bool of(const json::Node* value, std::string_view& text) {
        switch (value->type) {
            case json::Type::text: text = value->text; return true;
            case json::Type::yes: text = "true"; return true;
            case json::Type::no: text = "false"; return true;
            case json::Type::integer: return of(value->integer, text);
            default: return false;
        }
    }

private:
    bool of(int64_t integer, std::string_view& text) {
        const auto end = std::to_chars(digits_, digits_ + sizeof digits_, integer).ptr;
        text = {digits_, static_cast<size_t>(end - digits_)};
        return true;
    }

    char digits_[24];
};

// The keys that a dict may have. Dicts of one kind are mostly written in one order.
class Names {
public:
    void add(std::string_view name) { names_.emplace_back(name); }
    size_t size() const { return names_.size(); }

    // The number of a name, or -1.
    int find(std::string_view name) {
        for (size_t tried = 0; tried < names_.size(); ++tried, ++next_) {
            if (next_ >= names_.size()) next_ = 0;
            if (names_[next_] == name) return static_cast<int>(next_++);
        }
        return -1;
    }

private:
    std::vector<std::string> names_;
    size_t next_ = 0;
};

// Calls use(number of the key, value) for all of a dict whose keys are among the names, while it
// returns true.
template <typename Use>
bool plain_items(PyObject* dict, Names& names, const Use& use) {
    if (!PyDict_CheckExact(dict)) return false;
    PyObject *key, *value;
    Py_ssize_t position = 0;
    std::string_view text;
    while (PyDict_Next(dict, &position, &key, &value)) {
        const int number = plain_text(key, text) ? names.find(text) : -1;
        if (number < 0 || !use(number, value)) return false;
    }
    return true;
}

template <typename Use>
bool plain_items(const json::Node* object, Names& names, const Use& use) {
    if (object->type != json::Type::object) return false;
    for (const json::Node* key = object->first(); key != object->end(); key = key->next()->next()) {
        const int number = names.find(key->text);
        if (number < 0 || !use(number, key->next())) return false;
    }
    return true;
}

// Copies of texts, which need no Python object any more.
class TextCopies {
public:
    void add(std::string_view text) {
        bytes_.append(text);
        ends_.push_back(bytes_.size());
    }
    size_t size() const { return ends_.size(); }
    void cut(size_t size) {
        ends_.resize(size);
        bytes_.resize(size ? ends_.back() : 0);
    }
    std::string_view operator[](size_t i) const {
        const size_t first = i ? ends_[i - 1] : 0;
        return {bytes_.data() + first, ends_[i] - first};
    }

private:
    std::string bytes_;
    std::vector<size_t> ends_;
};
