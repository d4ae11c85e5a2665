"""Lines of made-up text in many scripts, with everything that tokenizers trip over: accents whole and in parts, forms
of compatibility, blanks of all kinds, emoji, long runs, bytes that are rare."""

import random
import unicodedata

_TEXTS = {
    "latin": "ka lo mi ne tu ra ster gen ing ver tion heit ße schön élan ção łód čes ñan øre ğül ﬁn ﬂo œuv æth ĳs",
    "vietnamese": "tiếng việt đường phố người nước thuyền ngữ ồ ặ ự",
    "greek": "και λόγος θεός ἄνθρωπος ὕδωρ ψυχή ώρα",
    "cyrillic": "при вет мир ёж йод дом слово щука їжак",
    "arabic": "سلام كتاب مدرسة بيت ﷲ لا إلى",
    "hebrew": "שלום בית ספר שׁ עִבְרִית",
    "devanagari": "नमस्ते भारत किताब क़लम",
    "thai": "สวัสดี ภาษาไทย น้ำ",
    "chinese": "你好 世界 语言 模型 漢字 豈",
    "japanese": "こんにちは カタカナ ｶﾞｷﾞ 東京 パン ㍿ ㌔",
    "korean": "한국어 안녕 세계 값 ㄱㅏ",
    "wide": "ＡＢＣ ｘｙｚ １２３ ！？ ～ ￥",
    "odd": "① ½ ² ™ ℃ … ‥ Ⅷ ㎏ 𝒳 𝔘 ﬃ ſ",
    "emoji": "😀 👍🏽 👩‍👩‍👧 🇩🇪 ❤️ ☃ 🏴‍☠️",
    "marks": "... !!! ?? -- ---- ==== , . ; : ' \" ( ) [ ] </s> <s> <unk> <pad> [MASK] <0x41> ▁ ## # @",
    "code": "x=1; f(a,b) {} \\n <br/> http://a.b/c?d=e&f #tag @you 3.14 1,000,000 2026-01-02",
}
SYLLABLES = {script: text.split() for script, text in _TEXTS.items()}
BLANKS = (" ",) * 30 + ("  ", "   ", "\t", "\u00a0", "\u3000", "\u2003", "\u200b", " \t ", "\u2028", "")
RARE = "\u0000\u0007\u001f\u007f\u00ad\u0300\u0301\u0323\u0378\u200d\u200e\ufe0f\ufeff\ufffc\ufffd\U00010348\U000e0020"


def words(rng, script):
    parts = [rng.choice(SYLLABLES[script]) for _ in range(rng.randrange(1, 4))]
    return "".join(parts) if script not in ("marks", "code") else rng.choice(parts)


def line(rng):
    """One line, half of the time in one script. Some words are decomposed, capitalised, runs of a letter, or broken."""
    scripts = [rng.choice(list(SYLLABLES))] if rng.random() < 0.5 else list(SYLLABLES)
    pieces = []
    for _ in range(rng.randrange(1, 14)):
        word = words(rng, rng.choice(scripts))
        if rng.random() < 0.2:
            word = unicodedata.normalize(rng.choice(("NFD", "NFKD", "NFC", "NFKC")), word)
        if rng.random() < 0.1:
            word = word.upper() if rng.random() < 0.5 else word.title()
        if rng.random() < 0.04:
            word = word[:1] * rng.randrange(2, 12)
        if rng.random() < 0.05:
            place = rng.randrange(len(word) + 1)
            word = word[:place] + rng.choice(RARE) + word[place:]
        if rng.random() < 0.02:
            word += chr(rng.choice((rng.randrange(0xA0, 0xD800), rng.randrange(0xE000, 0x30000))))
        pieces += [word, rng.choice(BLANKS)]
    text = "".join(pieces)
    return rng.choice(("", "", "", " ", "  ", "\u3000", "\t")) + text if rng.random() < 0.3 else text.strip()


def lines(count, seed):
    rng = random.Random(seed)
    return [line(rng) for _ in range(count)]
