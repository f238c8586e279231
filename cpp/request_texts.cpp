// Requests as JSON texts: read in one call for a batch, some ten microseconds each.

#include "request_texts.h"

#include "plain.h"

namespace {

// Fills in the parts; false for what only Python can tell: another key, an id or top_k of another kind.
bool take_apart(const json::Node* root, RequestParts& parts) {
    if (root->type != json::Type::object) return false;
    for (const json::Node* key = root->first(); key != root->end();) {
        const json::Node* value = key->next();
        if (key->text == "id") parts.id = value;
        else if (key->text == "attributes") parts.attributes = value;
        else if (key->text == "features") parts.features = value;
        else if (key->text == "at") parts.at = value;
        else if (key->text == "top_k") parts.top_k = value;
        else return false;
        key = value->next();
    }
    for (const json::Node** part : {&parts.attributes, &parts.features, &parts.at, &parts.top_k})
        if (*part != nullptr && (*part)->type == json::Type::null) *part = nullptr;
    if (parts.id == nullptr) return false;
    if (parts.id->type != json::Type::text && parts.id->type != json::Type::integer) return false;
    return parts.top_k == nullptr || (parts.top_k->type == json::Type::integer && parts.top_k->integer >= 0);
}

}  // namespace

RequestTexts::RequestTexts(nb::list texts)
    : documents_(new json::Document[texts.size()]), parts_(texts.size()) {
    std::vector<std::string_view> views;
    for (nb::handle text : texts) {
        texts_.push_back(nb::borrow(text));
        const auto bytes = nb::cast<nb::bytes>(text);
        views.emplace_back(bytes.c_str(), bytes.size());
    }
    nb::gil_scoped_release release;
    for (size_t i = 0; i < parts_.size(); ++i) {
        RequestParts parts;
        parts.plain = documents_[i].read(views[i]) && take_apart(documents_[i].root(), parts);
        if (parts.plain) parts_[i] = parts;
    }
}

nb::object object_of(const json::Node* value) {
    switch (value->type) {
        case json::Type::yes: return nb::bool_(true);
        case json::Type::no: return nb::bool_(false);
        case json::Type::integer: return nb::int_(value->integer);
        case json::Type::number: return nb::float_(value->number);
        case json::Type::text: return nb::str(value->text.data(), value->text.size());
        default: return nb::none();
    }
}

nb::list RequestTexts::heads() const {
    nb::list heads;
    for (const RequestParts& parts : parts_) {
        if (parts.plain)
            heads.append(nb::make_tuple(object_of(parts.id),
                                        parts.top_k == nullptr ? nb::none() : object_of(parts.top_k)));
        else
            heads.append(nb::none());
    }
    return heads;
}

void bind_request_texts(nb::module_& module) {
    nb::class_<RequestTexts>(module, "RequestTexts")
        .def(nb::init<nb::list>(), nb::arg("texts"))
        .def("__len__", &RequestTexts::size)
        .def("heads", &RequestTexts::heads);
}
