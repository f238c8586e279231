// JSON texts as nodes in one piece of memory, read without the interpreter.
//
// What is no JSON, or is no value that plain.h could take (an integer past 64 bits, half a surrogate, deep
// nesting), makes a text unread: whoever calls leaves it to Python. Keys given twice are not looked for:
// whoever takes a text in from outside has refused them.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace json {

enum class Type : uint8_t { null, no, yes, integer, number, text, list, object };

// A value; the nodes of what it holds follow it, of an object each member's key and value.
struct Node {
    Type type;
    uint32_t size = 1;  // nodes of the value, this one included
    int64_t integer = 0;
    double number = 0;
    std::string_view text;

    const Node* first() const { return this + 1; }
    const Node* end() const { return this + size; }
    const Node* next() const { return this + size; }
};

// One text and its nodes; the text must outlive it.
class Document {
public:
    // Whether the text was read; its value is root().
    bool read(std::string_view text) {
        at_ = text.data();
        end_ = at_ + text.size();
        nodes_.clear();
        nodes_.reserve(text.size() / 8 + 1);
        return is_utf8(text) && value(kMaxDepth) && (skip_space(), at_ == end_);
    }
    const Node* root() const { return nodes_.data(); }

private:
    static constexpr int kMaxDepth = 64;

    void skip_space() {
        while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    }
    bool take(char wanted) {
        if (at_ == end_ || *at_ != wanted) return false;
        ++at_;
        return true;
    }
    bool take_word(std::string_view word, Type type) {
        if (static_cast<size_t>(end_ - at_) < word.size() || std::string_view(at_, word.size()) != word)
            return false;
        at_ += word.size();
        nodes_.push_back({type});
        return true;
    }

    bool value(int depth_left) {
        skip_space();
        if (at_ == end_) return false;
        switch (*at_) {
            case '{': return members(depth_left, Type::object, '}');
            case '[': return members(depth_left, Type::list, ']');
            case '"': return text();
            case 't': return take_word("true", Type::yes);
            case 'f': return take_word("false", Type::no);
            case 'n': return take_word("null", Type::null);
            default: return number();
        }
    }

    bool members(int depth_left, Type type, char close) {
        if (depth_left == 0) return false;
        ++at_;
        const size_t place = nodes_.size();
        nodes_.push_back({type});
        skip_space();
        if (!take(close)) {
            do {
                if (type == Type::object) {
                    skip_space();
                    if (at_ == end_ || *at_ != '"' || !text() || (skip_space(), !take(':'))) return false;
                }
                if (!value(depth_left - 1)) return false;
                skip_space();
            } while (take(','));
            if (!take(close)) return false;
        }
        nodes_[place].size = static_cast<uint32_t>(nodes_.size() - place);
        return true;
    }

    bool text() {
        const char* first = ++at_;
        while (at_ < end_ && *at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= 0x20) ++at_;
        if (at_ == end_ || static_cast<unsigned char>(*at_) < 0x20) return false;
        std::string_view found(first, static_cast<size_t>(at_ - first));
        if (*at_ == '\\' && !unescape(found)) return false;
        ++at_;
        Node& node = nodes_.emplace_back(Node{Type::text});
        node.text = found;
        return true;
    }

    // Goes on from a backslash to the closing quote; what was found before it begins the text.
    bool unescape(std::string_view& found) {
        std::string& out = unescaped_.emplace_back(found);
        while (at_ < end_ && *at_ != '"') {
            const char c = *at_++;
            if (static_cast<unsigned char>(c) < 0x20) return false;
            if (c != '\\') {
                out += c;
                continue;
            }
            if (at_ == end_) return false;
            switch (*at_++) {
                case '"': out += '"'; break;
                case '\\': out += '\\'; break;
                case '/': out += '/'; break;
                case 'b': out += '\b'; break;
                case 'f': out += '\f'; break;
                case 'n': out += '\n'; break;
                case 'r': out += '\r'; break;
                case 't': out += '\t'; break;
                case 'u':
                    if (!unicode(out)) return false;
                    break;
                default: return false;
            }
        }
        found = out;
        return at_ < end_;
    }

    bool hexadecimal(uint32_t& code) {
        if (end_ - at_ < 4) return false;
        const auto [end, error] = std::from_chars(at_, at_ + 4, code, 16);
        if (error != std::errc() || end != at_ + 4) return false;
        at_ += 4;
        return true;
    }

    bool unicode(std::string& out) {
        uint32_t code, low;
        if (!hexadecimal(code)) return false;
        if (code >= 0xd800 && code < 0xe000) {
            if (code >= 0xdc00 || !take('\\') || !take('u') || !hexadecimal(low)) return false;
            if (low < 0xdc00 || low >= 0xe000) return false;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        if (code < 0x80) {
            out += static_cast<char>(code);
        } else if (code < 0x800) {
            out += static_cast<char>(0xc0 | code >> 6);
            out += static_cast<char>(0x80 | (code & 0x3f));
        } else if (code < 0x10000) {
            out += static_cast<char>(0xe0 | code >> 12);
            out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
            out += static_cast<char>(0x80 | (code & 0x3f));
        } else {
            out += static_cast<char>(0xf0 | code >> 18);
            out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
            out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
            out += static_cast<char>(0x80 | (code & 0x3f));
        }
        return true;
    }

    bool digits() {
        const char* first = at_;
        while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
        return at_ > first;
    }

    bool number() {
        const char* first = at_;
        take('-');
        const char* whole = at_;
        if (!digits() || (*whole == '0' && at_ - whole > 1)) return false;
        bool fraction = false;
        if (take('.')) {
            fraction = true;
            if (!digits()) return false;
        }
        if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
            fraction = true;
            ++at_;
            if (!take('-')) take('+');
            if (!digits()) return false;
        }
        Node node{fraction ? Type::number : Type::integer};
        const auto [end, error] =
            fraction ? std::from_chars(first, at_, node.number) : std::from_chars(first, at_, node.integer);
        if (error != std::errc() || end != at_ || !std::isfinite(node.number)) return false;
        nodes_.push_back(node);
        return true;
    }

    // As Unicode defines it: nothing overlong, no surrogates, nothing past U+10FFFF.
    static bool is_utf8(std::string_view text) {
        const auto* at = reinterpret_cast<const unsigned char*>(text.data());
        const auto* end = at + text.size();
        while (at < end) {
            if (*at < 0x80) {
                ++at;
                continue;
            }
            const int more = *at >= 0xc2 && *at < 0xe0 ? 1 : (*at & 0xf0) == 0xe0 ? 2 : *at >= 0xf0 && *at < 0xf5 ? 3 : 0;
            if (more == 0 || end - at <= more) return false;
            const unsigned char second = at[1];
            const unsigned char least = *at == 0xe0 ? 0xa0 : *at == 0xf0 ? 0x90 : 0x80;
            const unsigned char most = *at == 0xed ? 0x9f : *at == 0xf4 ? 0x8f : 0xbf;
            if (second < least || second > most) return false;
            for (int i = 2; i <= more; ++i)
                if ((at[i] & 0xc0) != 0x80) return false;
            at += more + 1;
        }
        return true;
    }

    const char* at_ = nullptr;
    const char* end_ = nullptr;
    std::vector<Node> nodes_;
    std::deque<std::string> unescaped_;  // whose elements stay where they are
};

}  // namespace json
