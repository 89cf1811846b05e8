"""Prints io/unicode_ranges.inc: which characters the `tokenizers` package takes for what. Its tables are
of several versions of Unicode, so they are read off what it does with every character.

    pip install tokenizers && python make_unicode_ranges.py > ../../io/unicode_ranges.inc
"""

from tokenizers import normalizers, pre_tokenizers

CHARACTERS = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


def removed_by(normalizer):
    return [c for c in CHARACTERS if normalizer.normalize_str("a" + c + "b") == "ab"]


def cut_by(pre_tokenizer, pieces):
    """Characters that are so many pieces together with a letter on either side."""
    return [c for c in CHARACTERS
            if len(pre_tokenizer.pre_tokenize_str("a" + c + "b")) == pieces]


def bert(**only):
    settings = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False,
                    lowercase=False)
    return normalizers.BertNormalizer(**{**settings, **only})


TABLES = {
    "kControls": removed_by(bert(clean_text=True)),
    "kNonspacingMarks": removed_by(bert(strip_accents=True)),
    "kMarks": removed_by(normalizers.StripAccents()),
    "kPunctuation": cut_by(pre_tokenizers.Punctuation(), 3),
    "kNumerics": cut_by(pre_tokenizers.Digits(individual_digits=True), 3),
    "kWordCharacters": cut_by(pre_tokenizers.Whitespace(), 1),
}


def ranges(characters):
    found = []
    for c in map(ord, characters):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def table(name, characters):
    lines, line = [], "   "
    for first, last in ranges(characters):
        entry = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(entry) > 100:
            lines.append(line)
            line = "   "
        line += entry
    return f"constexpr CodePoints {name}[] = {{\n" + "\n".join([*lines, line]) + "\n};\n"


print("// Made by tests/data/make_unicode_ranges.py.\n// clang-format off\n")
print("\n".join(table(name, characters) for name, characters in TABLES.items()))
print("// clang-format on")
