// Requests as JSON texts, taken apart for those who read their parts.
#pragma once

#include <memory>

#include "arrays.h"
#include "json_text.h"

// The parts of one request; null pointers where it does not say. Only a plain one has parts.
struct RequestParts {
    bool plain = false;
    const json::Node *id = nullptr, *attributes = nullptr, *features = nullptr, *at = nullptr,
                     *top_k = nullptr;
};

class RequestTexts {
public:
    // Reads texts, bytes each; the interpreter is not held.
    explicit RequestTexts(nb::list texts);

    size_t size() const { return parts_.size(); }
    const RequestParts& operator[](size_t i) const { return parts_[i]; }

    // Per request (id, top_k), or None where it is not plain.
    nb::list heads() const;

private:
    std::vector<nb::object> texts_;  // which the documents point into
    std::unique_ptr<json::Document[]> documents_;
    std::vector<RequestParts> parts_;
};

// The Python object that a JSON parser makes of a text, a number, true or false.
nb::object object_of(const json::Node* value);
inline nb::object object_of(PyObject* value) { return nb::borrow(value); }

void bind_request_texts(nb::module_& module);
