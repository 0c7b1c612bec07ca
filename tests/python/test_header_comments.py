"""Every declaration in a public C++ header has a comment of its own: `///` before it, or `///<` behind it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = re.findall(r"^#include <glade/(.*)>$", (ROOT / "glade.h").read_text(), re.MULTILINE)
TOKEN = re.compile(
    r"(?P<comment>//[^\n]*)|(?P<skipped>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|\s+)"
    r"|(?P<code>::|\w+|.)",
    re.MULTILINE,
)
CLASS = re.compile(r"(?:template <.*> )?(?:class|struct) ((?:\w+ :: )*\w+)(?: <.*>)?(?: final)?(?: :(?!:).*)?$")


class Declaration:
    def __init__(self, text, line, scope, has_comment):
        self.text, self.line, self.scope, self.has_comment = text, line, scope, has_comment

    def name(self):
        if match := re.search(r"\boperator (.*?)(?= \((?! \) \())", self.text):
            return "operator" + match[1].replace(" ", "")
        text = re.sub(r"^template < .*? > (requires .*? > )?", "", self.text)
        if match := re.match(r"(?:class|struct|union|enum(?: class)?|using) (\w+)", text):
            return match[1]
        while "<" in text and text != (text := re.sub(r" <[^<>]*>", "", text)):
            pass
        return re.findall(r"(?:~ )?\w+", re.split(r" [=({]", text, maxsplit=1)[0])[-1]

    def needs_comment(self):
        """Not what the language defines (copies, moves, destructors, operators), nor what repeats another declaration or names a member
        of the type before it."""
        if re.search(r"^\w+$|\b(override|friend)\b|= (delete|default)$|^(template < .* > )?(class|struct) \w+$|^using \w+( :: \w+)+$", self.text):
            return False
        name = self.name()
        takes_nothing_or_moves = re.search(r"\( \)|& & (\w+ )?\)", self.text)
        return not (name.startswith("~") or (name.startswith("operator") and name != "operator()") or (name == self.scope and takes_nothing_or_moves))


class Reader:
    """Knows as much of C++ as formatted headers need. It looks into namespaces and classes, but not into bodies, initializers, private
    parts, specializations and namespaces called detail."""

    def __init__(self, source):
        self.found, self.last = [], None
        self.scopes = [("", True, None)]  # their names, whether what they declare is public, and the declarations of classes
        self.words, self.begin, self.line = [], 1, 1
        self.nesting = 0  # in parentheses
        self.body = 0  # in the braces of a body or an initializer
        self.body_ended = False  # if no semicolon follows, so has the declaration
        self.is_value = False  # what is in words, because of an equals sign
        self.has_comment = False
        for token in TOKEN.finditer(source):
            if token.lastgroup == "comment":
                self.read_comment(token[0])
            elif token.lastgroup == "code":
                self.read_code(token[0])
            self.line += token[0].count("\n")

    def read_comment(self, text):
        if self.body_ended:
            self.end()
        if text.startswith("///<") and not self.words:
            if self.last:
                self.last.has_comment = True
        elif text.startswith("///") and not self.body:
            self.has_comment = True

    def read_code(self, text):
        if self.body:
            self.body += {"{": 1, "}": -1}.get(text, 0)
            self.body_ended = self.body == 0
            return
        if self.body_ended and text not in {",", ";", "{"} and not self.is_value:
            self.end()
        self.body_ended = False
        if text == "(" or (text == "{" and self.nesting):
            self.nesting += 1
        elif text in {")", "}"} and self.nesting:
            self.nesting -= 1
        elif not self.nesting and text in {"{", "}", ";", ":"}:
            return self.read_mark(text)
        if not self.words:
            self.begin = self.line
        self.is_value = self.is_value or (text == "=" and not self.nesting and "operator" not in self.words)
        self.words.append(text)

    def read_mark(self, text):
        name, is_public, declaration = self.scopes[-1]
        declared = CLASS.match(" ".join(self.words))
        if text == ":" and self.words in (["public"], ["protected"], ["private"]):
            self.scopes[-1] = (name, self.words[0] != "private" and self.scopes[-2][1], declaration)
            self.forget()
        elif text == ":":
            self.words.append(text)
        elif text == ";":
            self.end()
        elif text == "}":
            self.last = self.scopes.pop()[2]
            self.forget()
        elif "namespace" in self.words:
            self.scopes.append((self.words[-1], is_public and self.words[-1] != "detail", None))
            self.forget()
        elif declared:
            is_special, is_struct = declared[0].startswith("template < >"), bool(re.search(r"\bstruct \w+", declared[0]))
            if is_special:
                self.forget()
            else:
                self.end(" { }")
            self.scopes.append((declared[1], is_public and is_struct and not is_special, self.last))
        else:
            self.body = 1

    def end(self, rest=""):
        name, is_public, _ = self.scopes[-1]
        if self.words:
            self.last = Declaration(" ".join(self.words) + rest, self.begin, name, self.has_comment)
            self.found += [self.last] if is_public else []
        self.forget()

    def forget(self):
        self.words, self.has_comment, self.body_ended, self.is_value = [], False, False, False


def without_comment(source):
    """Overloads that follow one another share the comment of the first."""
    previous, is_covered = None, False
    for declaration in Reader(source).found:
        if declaration.needs_comment():
            called = (declaration.scope, declaration.name())
            is_covered = declaration.has_comment or (called == previous and is_covered)
            previous = called
            if not is_covered:
                yield declaration


def test_what_lacks_a_comment_is_found():
    source = """
        namespace glade {
        /// A comment.
        class A : public B {
         public:
          explicit A(int x) : x_{x}, y_(2) {}
          A(const A&) = delete;
          int f() const { return g({1}); }
          int g(int x = {}, std::function<int(int)> h = {}) const;  ///< A comment.
          void run() override;
         protected:
          struct Inner {
            int a = 0;
            int b = int{1} << 2;  ///< A comment.
            std::function<int(int x)> h;
          };
         private:
          int x_;
          int y_;  ///< A comment.
        };
        struct Error : Base { using Base::Base; };  ///< A comment.
        template <class T>
        T last(const T& x);
        /// Overloads.
        int add(int a);
        int add(float a);
        enum class E { one, two };
        namespace detail {
        int hidden();
        }
        template <>
        struct std::limits<A> : Limits {
          int hidden;
        };
        using Names = std::vector<A>;
        }  // namespace glade
        """
    assert [declaration.name() for declaration in without_comment(source)] == ["A", "f", "Inner", "a", "h", "last", "E", "Names"]


@pytest.mark.parametrize("header", HEADERS)
def test_declarations_have_comments(header):
    source = (ROOT / header).read_text()
    assert Reader(source).found
    assert [f"{header}:{declaration.line}: {declaration.text}" for declaration in without_comment(source)] == []
