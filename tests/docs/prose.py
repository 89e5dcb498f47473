#!/usr/bin/env python3
"""Checks the English of the tree: documentation, comments, help texts, messages, test names, identifiers, commit subjects.

    prose.py                                  every hit, as file:line: rule: "words": advice
    prose.py --summary                        counts by rule and kind of text, and by rule and folder
    prose.py --commits main..HEAD             checks commit subjects of a range as well
    prose.py --rules long,beside docs/a.md    only these rules, only these files
    prose.py --rules=-long                    all rules except this one
    prose.py --list                           the rules

Exit status: 0 without hits, 1 with hits or with too many exemptions, 2 for a wrong command line. It needs Python 3.9 and git.
A comment's paragraph that holds `prose: allow RULE` is exempt from that rule; in Markdown, text between the lines
`<!-- prose: off -->` and `<!-- prose: on -->` is not checked.
"""
import argparse
import bisect
import collections
import os
import random
import re
import subprocess
import sys

MAX_WORDS = 30      # in a sentence
MAX_OF = 3          # "of" in a sentence
MAX_COLUMNS = 120   # of a Markdown line outside tables and code
MAX_SUBJECT = 72    # characters of a commit subject
MAX_EXEMPTIONS = 30 # in the tree, without the style page
STYLE_PAGE = "docs/style.md"

# Programs write these files. The sources of their text are checked instead.
GENERATED = {"docs/ops.md", "docs/notes/op-samples.md"}
SKIP = re.compile(r"^(LICENSE|(?:.*/)?prose(?:_test)?\.py$|tests/fuzz/corpus/|tests/.*\.(json|dict|txt|safetensors)$|tests/mutants/faults/)")

FIRST_CODE, LAST_CODE = 0xE000, 0xF8FF  # a code span becomes one character of this range
C = "\ue000-\uf8ff"
W = rf"[\w{C}’'-]+"                     # a word, or a code span

# ---------------------------------------------------------------------------------------------- rules

Rule = collections.namedtuple("Rule", "id group pattern advice kinds stems")
RULES = []
PROSE = ("docs", "notes", "changelog", "public header", "comment", "test comment", "script", "help", "message")


def rule(id, group, pattern, advice, kinds=PROSE):
    """A rule without a pattern is a function below. A pattern runs only over files that contain one of its
    STEMS."""
    if pattern is not None:
        # A space matches any white space. In a look-behind, it matches one character of white space.
        pattern = re.sub(r"\(\?<[!=][^()]*\)", lambda m: m.group(0).replace(" ", r"\s"), pattern)
        pattern = re.compile(pattern.replace(" ", r"\s+"), re.I)
    RULES.append(Rule(id, group, pattern, advice, kinds, frozenset(STEMS.get(id, "").split())))


STEMS = {
    "what-noun": "what", "of-which": "which whom", "elided-verb": "not", "for-because": "for", "where-if": "where", "but-for": "but", "none": "none no",
    "as-many": "many much", "another-than": "than", "former-latter": "former latter", "at-once": "once", "on-its-way": "way",
    "other": "other another", "of-first": "of", "those": "those that", "from-on": "from", "else": "else", "behind": "behind",
    "take": "take takes took taken taking", "say-tell": "tell tells told telling say says said saying",
    "come-go": "come comes came coming goes went gone going", "of-its-own": "own", "lie": "lie lies lain lying", "alone": "alone",
    "turn": "turn turns turned turning", "by-turns": "turns turn", "beside": "beside", "want": "want wants wanted for unasked asked", "company": "company",
    "bits": "bits bit bytes", "as-it-is": "as", "text-sequence": "text texts", "seat": "seat seats", "chain": "chain chains", "half-copy": "half",
    "planted": "plant plants planted planting", "rope": "rope ropes", "heads-to": "head heads latents values keys", "place": "place places",
    "terms": "term terms", "doors": "door doors guest guests", "obstacle": "obstacle obstacles", "sums-left": "left small rows",
    "starting": "starting large ends line on",
}
ASKING = (r"(?:show|shows|shown|showing|see|sees|seen|know|knows|known|decide|decides|decided|determine|determines|explain|"
          r"explains|describe|describes|matter|matters|define|defines|defined|choose|chooses|measure|measures|learn|find|out|"
          r"check|checks|exactly|regardless of|no matter|control|controls|guess|understand|depend on|depends on|ask|asks|"
          r"specify|specifies|documents?|explaining|list|lists|summari[sz]es?|and|or|but|about)")

# sentence shapes -------------------------------------------------------------------------------
rule("long", "sentence", None, f"more than {MAX_WORDS} words: split it")
rule("of-chain", "sentence", None, f"more than {MAX_OF} 'of': split, or use a compound noun ('the key cache size')")
rule("semicolons", "sentence", None, "two semicolons or more: make sentences, or a list")
rule("what-subject", "sentence", None, "a 'what' clause as subject: name the thing ('The values read …')")
rule("what-noun", "sentence",
     rf"(?<!{{)\b(?!{ASKING} what|means? what)(?:{W},?) what (?!(?:is|was|went) wrong|to )(?:it|they|is|are|a|an|the|was|were|has|have|one|each|ranks?|must|this|"
     rf"that|these|those|we|you|others|no|of|there|he|\w+s|does|do|can|cannot|may|will|would|nothing|came|comes|follows)\b(?![^.\n]*\?)",
     "a 'what' clause as noun: name the thing ('the tokens read')")
rule("of-which", "sentence",
     r"(?<!some )(?<!each )(?<!all )(?<!most )(?<!both )(?<!any )(?<!none )(?<!many )(?<!one )(?<!half )(?<!first )(?<!last )(?<!st )(?<!\d )\bof (?:which|whom)\b",
     "'of which': split the sentence, or 'whose'")
rule("elided-verb", "sentence",
     rf"(?<!whether )\b(?:has|have|had|must|may|there is|there are|there were) not(?=[,;:)]|\.(?:\s|$)|\s*(?:\x00|$))|"
     rf"\bas (?:{W} ){{1,4}}?(?:do|does|is|are|can|has|have) not(?=[,;:)]|\.(?:\s|$)|\s*(?:\x00|$))|\bWhat (?:is|does) not:",
     "verb left out: repeat it ('f16 lacks that range')")
rule("for-because", "sentence",
     rf", for (?:it|they|he|we|there|nothing|nobody|everything|both) (?!the\b|a\b|which\b|whom\b|of\b|to\b|and\b){W}|"
     rf", for (?!which|what|whom|that\b|example|instance)(?:(?!(?:that|which|who|whose|whom|where|when|what|if|to|for|and|or|as|but|with|from)\b){W} ){{1,5}}?"
     rf"(?:is|are|was|were|has|have|had|can|cannot|may|might|must|does|do|did|would|will|could|should|needs?|reads?|writes?|takes?|gives?|costs|makes?|holds|keeps|"
     rf"computes|begins|comes|goes|adds?|changes|depends|knows|gets|sends|returns|travels?|runs|lies|wrote|decides)\b(?! (?:for|of the)\b)",
     "'for' as 'because': write 'because', or start a sentence")
rule("where-if", "sentence",
     rf"(?:(?<=[.!?:;] )|(?<=\x00)|(?<=[.!?:;]\n))Where (?!to |is |are |do |does |did |your )(?=[^.:;?\x00]{{3,160}}?, (?!and\b|or\b|in\b|as\b|so\b|with\b|by\b|twice\b|from\b))(?![^,.;:\x00]{{3,80}}\b(?:are|is|lies?|begins?|ends?),)(?![^.\x00]{{0,80}}\bcomes? from\b)"
     rf"(?![^.\x00]*\?)(?:{W} ?){{1,3}}|"
     rf"(?<!begin )(?<!begins )(?<!end )(?<!ends )(?<!read )(?<!stored )(?<!from )(?<!know )(?<!see )(?<!shows )(?<!says )(?<!of )(?<!and )\bwhere (?:there (?:is|are|was|were|would|may)\b|"
     rf"(?:that|this) (?:is|takes|pays|costs|would|does|fits|has|allows|helps|can|makes|saves|gains)\b|possible\b|necessary\b|"
     rf"it (?:fits|takes|pays|costs|can|cannot|may|helps|would be|is (?:not|faster|possible|missing|worth|larger|smaller|the limit|allowed|known|slower|small))\b|"
     rf"they (?:have|do|fit|can|cannot|may|are (?:large|few|many|short|small|not|given|counted|as|plentiful))\b|"
     rf"(?!a query|the \w+ begin|a \w+ kernel|this one|a run|memory may|all warps|each piece)(?:(?!(?:and|or|which|that|is|are|by)\b){W} ){{1,4}}?(?:has|have|can|cannot|may|must|takes?|fits?|pays?|reach(?:es)?|allows?|(?:does|do) not|"
     rf"(?:is|are) (?:few|short|small|large|long|not|no|as many|as long|as large|wider|many|too|several|one|equal|available|free|installed|set|missing|there|plentiful|processed))\b)",
     "'where' as 'if' or 'when': write 'if', 'when' or 'for … that'")
rule("but-for", "sentence",
     rf"\bbut for\b(?! (?:the first time|example|now|this reason)\b)|\b(?:none|nobody|no one|anything|everything|everyone|(?:no|any|every|all) {W}) but\b(?! (?:it|they|also|not|is|are|the (?:first|last)|one|its own)\b)",
     "'but' as 'except': write 'except', or 'only'")
rule("none", "sentence",
     rf"(?<!there )(?<!which )\b(?:is|are|was|were|be) none\b(?! of (?:them|these|those)\b)|(?<!there )\b(?:is|are|was|were|be) no (?!longer|more|less|different|better|worse|slower|faster|larger|smaller|later|earlier|higher|lower|matter|such|need|reason)(?={W})",
     "'is no(ne)': write 'is not a …', 'does not …'")
rule("as-many", "sentence",
     rf"\bso (?:many|much)\b(?! (?:that|so|for|as|the)\b)|(?<!twice )(?<!half )(?<!times )(?<!third )\bas (?:many|much)\b(?! as\b)(?![^.;:\x00]{{0,60}}? as\b)|"
     rf"\b(?:as many|as much) again\b",
     "'so many', 'as many' without its second half: 'N', 'the same number of', 'N times larger'")
rule("another-than", "sentence",
     rf"(?<!no )\b(?:another|other) (?:(?!(?:of|in|for|more|less|fewer|later|else)\b){W} ){{1,3}}than\b|\banother (?:number|kind|list|set) of {W} than\b|\banother than\b",
     "'another … than': write 'a different … from'")
rule("other", "sentence",
     rf"\b(?:has|have|had|with|of|in) another (?:floating )?(?:dtype|size|shape|number|name|type|order|token|length|value|width|form|memory order|layout|option|kind)\b(?! than)|"
     rf"\b(?:has|have|had|with|from) other (?:settings|options|data|weights|sizes|shapes|types|values|lengths|names|ids)\b(?! than)",
     "'another', 'other' as 'different': write 'a different …', and from which")
rule("of-first", "sentence", rf"(?:(?<=[.!?;] )|(?<=\x00)|(?<=[.!?;]\n))(?-i:Of) (?!course\b){W}",
     "a sentence that begins with 'Of': put the subject first")
rule("those", "sentence", rf"(?:(?<=[.!?] )|(?<=\x00)|(?<=[.!?]\n))(?-i:Those|That) of\b|\b(?:that|those) of (?:{W} ){{1,8}}?(?:that|those) of\b",
     "'those of', 'that of': repeat the noun")
rule("from-on", "sentence", rf"\bfrom (?:(?!(?:then|now|that|here|there)\b){W} ){{1,3}}on(?=[.,;:)]| (?!a\b|the\b|an\b|one\b|all\b|each\b|its\b|{W}s\b))",
     "'from N on': 'starting at N', 'for N or more'")
rule("else", "sentence", rf"(?:(?<=[.;:] )|(?<=\x00)|(?<=[.;:]\n))else\b|\b(?:and|but) else\b",
     "'else': 'otherwise'")
rule("behind", "sentence", r"\bbehind\b(?! the scenes| a (?:tunnel|firewall))", "'behind': 'after', 'following'")
rule("former-latter", "sentence", r"\b(?:the (?:former|latter)(?: two| one)?)\b", "'the former', 'the latter': repeat the noun")
rule("at-once", "sentence",
     rf"\b(?:ends?|ended|ending|stops?|stopped|returns?|returned|throws?|thrown|noticed|noted|seen|runs|given back|frees?|freed|starts?|started|begins?|copies|copied|closed|killed|fails?|"
     rf"reported|waiting|missed|dies|exits?|process|shown|done|kills|right|found|there|throw) at once\b|[,;] at once (?:or|by|in|after|when)\b",
     "'at once': 'immediately' (or 'at the same time', 'in one pass')")
rule("on-its-way", "sentence", r"\bon (?:its|their|the) way\b|\bunder way\b|\bon the road\b", "'on its way': 'in flight', 'running', 'before …'")

# words -----------------------------------------------------------------------------------------
rule("take", "word",
     rf"\b(?<!is )(?<!are )(?<!was )(?:take|takes|took|taking|taken)\b(?! (?:about |only |less |more |at most |up to |over |under |some |around |nearly |almost |no |little |much |longer |N |the same |as much |as many |too much |twice the |half the )*"
     rf"(?:\d|time\b|seconds?\b|minutes?\b|ms\b|µs|hours?\b|half\b|long|memory|space|bytes|room|days|[½¼≈~<>≤{C}]|as long)|"
     rf" (?:N times|linear|constant|quadratic|too long|the time)\b| (?:the |its |their )?(?:place|part in|care|advantage|effect|turns?|into account|precedence|over\b|off\b|effort)|"
     rf" (?:{W} ){{1,2}}(?:ms|µs|s|ns|GB|MiB|GiB|bytes|of memory|%|less|more|longer)(?!\w)|"
     rf" a (?:third|quarter|half|few|minute|second|millisecond|microsecond|while|fifth|tenth|long|list|pointer|tensor|function|path|lambda|callback)\b)",
     "'take': 'use', 'accept', 'need', 'choose', 'cost'")
rule("say-tell", "word",
     r"(?<!error )(?<!message )(?<!comment )(?<!comments )(?<!paper )(?<!documentation )(?<!error that )(?<!message that )\b(?:tell|tells|told|telling|say|says|said|saying)\b(?!,? (?:that )?\d)(?! when\b)",
     "'say', 'tell' of code: 'report', 'print', 'specify', 'distinguish', 'list'")
rule("come-go", "word",
     rf"(?<!time )\b(?:come|comes|came|coming|goes|went|gone|going)\b(?! (?:from|with (?:the|it|them)|through|true|first|last|next|closest|wrong|to (?:zero|0|infinity)|beyond|below|above|on top)\b)",
     "'come', 'go' of data or code: 'arrive', 'is received', 'is sent', 'follows', 'continues'")
rule("of-its-own", "word",
     r"\bof (?:its|their|our|his|her) own\b(?= (?:and|or|in|is|for|that|with|by|to|on|which|are|was|has|have|had|would|from|at|if|there|than|not|but|as|where|when|after|before|while|computes?|writes?|reads?|makes?|"
     r"adds?|does|do|may|can|cannot|must|outside|only|so|because|until|without|over|too|instead|beside|there)\b|\s*[.,;:()!?\x00]|\s*$)",
     "'of its own': 'a separate …', 'its own …', 'custom'")
rule("lie", "word", r"\b(?:lie|lies|lain|lying)\b(?! (?:between|within|in \[|in \()\b)", "'lie': 'is stored', 'is', 'is located'")
rule("alone", "word", r"(?<!let )(?<!stand)(?<!-)(?<!is )(?<!left )(?<!leaves )(?<!leave )(?<!leaving )(?<!parameters )\balone\b(?!-)", "'alone': 'only' before the noun, 'by itself', 'a single …', 'in a batch of one'")
rule("turn", "word", rf"(?<!in )(?<!by )(?<!in its )(?<!in their )(?<!takes )(?<!take )(?<!taking )(?<!quarter )\b(?:turn|turns|turned|turning)\b(?! (?:out|on|off|into|to page)\b)(?! (?:{W} ){{1,6}}into\b)",
     "'turn': 'rotate', 'transpose', 'negate', 'become'; as a noun: 'order', 'ticket'")
rule("by-turns", "word", r"\bby turns\b|\bin (?:turns|their turn|its turn)\b",
     "'by turns': 'alternately', 'in alternating runs'")
rule("beside", "word", r"\bbeside\b", "'beside': 'next to', 'compared with', 'in addition to'")
rule("want", "word", r"\b(?:wants?|wanted|asks? for|asked for|asking for|unasked|without being asked)\b", "'want', 'ask for': 'need', 'require', 'request', 'expect'")
rule("company", "word", r"\bcompany\b", "'company': 'batch' ('independent of the rest of the batch')")
rule("bits", "word",
     r"\b(?:has|have|with|gives?|gets?|keeps?|decides?) (?:the (?:same )?|other |its |their )bits (?:of|that)\b|\b(?:has|have) the bytes of\b|\bother (?:last )?bits\b|\b(?:its|their) last bits\b|\bwith (?:its|their) bits\b|\bdecides? (?:its|their)? ?bits\b|\bbits are those\b|\b(?:costs?|changes?) (?:no|a) bits?\b",
     "'has the bits of': 'is bitwise identical to'")
rule("as-it-is", "word", r"(?<!stay )(?<!stays )(?<!kept )(?<!left )(?<!it )\bas (?:it|they) (?:lies?|stands?|comes?|likes?|goes?|is(?=[.,;:)])|are(?=[.,;:)]))", "'as it is', 'as it lies': 'in place', 'unchanged', 'without conversion'")

# private nouns ---------------------------------------------------------------------------------
rule("text-sequence", "noun", r"\btexts\b|\btext's\b|\b(?:each|another|every|any|per) text\b(?! (?:file|editor))|\b(?:a|one|that|which|the) text (?:that|which|joins?|ends?|leaves?|waits?|has|takes?|gives?)\b",
     "'text': 'sequence' (tokens of a batch row), 'request' (of a server), 'document'")
rule("seat", "noun", r"\bseats?\b", "'seat': 'slot'")
rule("chain", "noun", r"(?<!template )(?<!if-)(?<!Markov )\bchains?\b(?! rule| of (?:ifs?|additions|dependent|certificates|multiply|k\b))",
     "'chain': 'fused elementwise kernel', 'fused step'")
rule("half-copy", "noun", r"\bhalf (?:cop(?:y|ies)|types?|weights?|operands?|products?|dtypes?|results?)\b|\ba half\b(?= that)",
     "'half copies': 'low-precision copies'; 'half types': '16-bit types'")
rule("planted", "noun", r"\bplant(?:s|ed|ing)?\b(?: (?:a |of )?)?", "'planted fault': 'mutant', 'injected bug'")
rule("rope", "noun", r"(?-i:\bropes\b|\b(?:a|the|each|its|one|another|this|that|own|of) rope\b(?! ?[(:]))", "'rope': 'RoPE', 'rotary embedding'")
rule("heads-to", "noun", r"\bheads? (?:to|of|beyond|above|up to) \d+\b|\b(?:latents?|values|keys) to \d+\b", "'heads to 128': 'head size ≤ 128'")
rule("place", "noun", r"(?<!in )(?<!take )(?<!takes )(?<!took )(?<!decimal )\b(?:a|the|its|their|each|one|fixed|same|other|which|whose|this|that|page|own) places?\b(?! (?:for|of) (?:the )?(?:user|discussion))|\bplaces\b(?! (?:it|them|those|a|the|each|buffers))",
     "'place': 'offset', 'position', 'slot', 'location'")
rule("terms", "noun", r"(?<!sum of )(?<!sums of )\b(?:f16|two|one) terms?\b", "'terms': 'f16 split' ('x = high + low')")
rule("doors", "noun", r"\b(?:doors?|guests?)\b", "'door', 'guest': 'listener', 'peer'")
rule("obstacle", "noun", r"\bobstacles?\b", "'obstacle': 'reason'")
rule("sums-left", "noun", r"\bsums? left\b|\bsmall steps\b|\brows alone\b", "'sums left': 'deferred reductions'; 'small steps': 'horizontal fusion'; 'rows alone': 'batch-invariant'")
rule("starting", "noun", r"\bstarting values?\b|\bso large as\b|\bends? with 0\b|\bline of ops\b|\bon and on\b", "see CONTRIBUTING's table")

# names, lines, commits ---------------------------------------------------------------------------
NAMES = {
    "rows_alone": "batch_invariant", "free_order": "nondeterministic (negate)", "sum_ranks": "all_reduce", "gather_ranks": "all_gather",
    "scatter_sum": "reduce_scatter", "exchange_ranks": "all_to_all", "shift_ranks": "ppermute", "own_piece": "local_shard",
    "spread_ranks": "identity with an all-reduce gradient", "turned_product": "transposed_gemm", "sums_left": "deferred_reductions",
    "small_steps": "horizontal_fusion", "small_products": "grouped_gemm", "in_words": "describe", "tell_lost": "notify_lost",
    "obstacle": "reason", "seats": "slots", "seat": "slot", "door": "listener", "guest": "peer", "own_tokens": "local_tokens",
    "is_apart": "is_split_kv", "is_of_short_heads": "has_short_sequences",
    "decoding_apart": "split_kv", "turn": "rotate, transpose; noun: order, ticket", "turned": "rotated, transposed",
    "HalfCopies": "LowPrecisionCopies", "half_copies": "low_precision_copies", "whole_text": "sequence", "texts": "sequences",
    "waits_for_ranks": "is_collective", "is_added_for": "appends_cache_for", "reads_what_is_assigned": "reads_assigned_parameter", "company": "batch",
}
# Words that are private in these folders only: elsewhere `texts` are strings.
NAMES_IN = {"texts": ("nn/", "ops/", "backends/", "tests/nn/", "tests/ops/", "tests/backends/", "tools/generate", "tools/bench")}
rule("identifier", "name", None, "a private word: use the field's term", ("code",))
rule("test-name", "name", None, "Suite.SubjectConditionExpectation: no 'what' clause, no private noun, a subject first", ("code",))
rule("md-columns", "line", None, f"more than {MAX_COLUMNS} columns: wrap", ("docs", "notes", "changelog"))
rule("commit-length", "commit", None, f"more than {MAX_SUBJECT} characters", ("commit",))
rule("commit-joined", "commit", None, "a semicolon: one commit, one subject", ("commit",))
rule("commit-mood", "commit", None, "start with an imperative verb, after 'area: ' if you like ('Fix', 'Add', 'Fuse')", ("commit",))
rule("commit-body", "commit", None, "no body: say why, and what was measured", ("commit",))
BY_ID = {r.id: r for r in RULES}
# Words just before a match that make it plain English: "the time they took", "depends on the row alone".
BEFORE = {
    "take": re.compile(r"\b(?:time|times|seconds|long|µs|ms|minutes|hours)\s+(?:\S+\s+){0,4}$", re.I),
    "alone": re.compile(r"\b(?:depends?|leaves?|leaving)\s+(?:\S+\s+){0,8}$", re.I),
    "as-it-is": re.compile(r"\b(?:keeps?|kept|leaves?|left|stays?)\s+(?:\S+\s+){0,7}$", re.I),
    "say-tell": re.compile(r"\b(?:rule|unless|page|docs?|test)\s+(?:\S+\s+){0,1}$", re.I),
    "behind": re.compile(r"\b(?:leaves?|left|leaving)\s+(?:\S+\s+){0,5}$", re.I),
    "turn": re.compile(r"\bwait(?:s|ing)?\s+for\s+(?:\S+\s+){0,2}$", re.I),
}

TEST_NAME = re.compile(
    r"^(?:By|As|Of|With|Without|In|On|At|To|That|Which|What|And|But|For|If|Where|When|So|Also|Than|From)(?=[A-Z])|"
    r"What(?=[A-Z])|Texts?(?=[A-Z]|$)|Company|Alone|Seats?(?=[A-Z]|$)|Tells?(?=[A-Z]|$)|Told|Says?(?=[A-Z]|$)|Lies?(?=[A-Z]|$)|Turn(?:s|ed)?(?=[A-Z]|$)|"
    r"Beside|Of(?:Its|Their)Own|AsMany|SoMany|AsTheyAre|AsItIs|ButFor|NoOther|Planted|Chains?(?=[A-Z]|$)|OfWhich|ThatIsNone|AnyHow|Goes|Comes?(?=[A-Z]|$)")

IMPERATIVE = set("""
abort accept accumulate add adjust align allocate allow annotate append apply assert assign avoid await benchmark bind bound build bump bypass cache
calibrate call capture cast catch change check choose clamp clarify clean clear close collect combine compare compile complete compress compute
configure connect convert copy correct count cover create cut deallocate debug decode decouple decrease dedupe default defer define delete deprecate derive
describe detect deterministically disable disallow document download draw drop dump emit enable encode enforce ensure escape evaluate exclude exit expand
expect explain export expose extend extract fall fetch fill filter find finish fix flag flatten flush fold forbid force format free fuse gather generate
group guard guarantee handle hide hoist ignore implement import improve include increase index infer init initialise initialize inline insert install instrument
interleave introduce invert isolate join keep launch let lift limit link list load lock log lower make mark mask match measure merge migrate minimise
minimize mirror mock modernise modernize move name narrow normalise normalize note omit open optimise optimize order organise organize overlap override pack pad
parallelise parallelize parameterise parameterize parse pass patch permit pin pipeline place plan plot poll pool port prefer prefetch prepare preserve prevent print
process profile promote propagate protect prove provide prune publish push put queue quote raise randomise randomize read rebase recompute record recover
reduce refactor refine reflow refresh refuse register reject relax release reload remove rename render reorder reorganise reorganize replace report
represent reproduce request require rerun reserve reset resolve respect restore restrict retry return reuse revert review revise reword rewrite rotate round
route run sample save scale schedule select send separate serialise serialize set share shard shorten show simplify skip smooth sort specialise specialize
specify speed split spread stabilise stabilize stage standardise standardize start state stop store stream strip strengthen substitute support suppress swap switch
synchronise synchronize sync tag teach template test throw tidy tighten time trace track train transform translate transpose treat trim truncate try tune
turn unify unroll unpack unlock unset update upgrade upload use validate vectorise vectorize verify warn wait widen wire wrap write yield zero
""".split())

# ----------------------------------------------------------------------------------------- extraction

Unit = collections.namedtuple("Unit", "kind line text codes allowed")
CODE_SPAN = re.compile(r"(`+)(.+?)\1", re.S)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]+)\]\([^)\s]*\)")
ALLOW = re.compile(r"prose: allow ([\w, -]+)")


def lines_kept(old, new):
    return new + "\n" * (old.count("\n") - new.count("\n"))


def unit(kind, line, text):
    """A paragraph as plain words: code spans are one character each, links are their words, line breaks stay."""
    codes = []

    def code(m):
        if len(codes) > LAST_CODE - FIRST_CODE:
            return m.group(0)
        codes.append(m.group(0))
        return lines_kept(m.group(0), chr(FIRST_CODE + len(codes) - 1))

    allowed = frozenset(w for m in ALLOW.finditer(text) for w in re.split(r"[,\s]+", m.group(1)) if w)
    if "`" in text:
        text = CODE_SPAN.sub(code, text)
    if "](" in text:
        text = IMAGE.sub(lambda m: lines_kept(m.group(0), ""), text)
        text = LINK.sub(lambda m: lines_kept(m.group(0), m.group(1)), text)
    text = text.replace("**", "").replace("\x00", "")
    return Unit(kind, line, text, codes, allowed)


def shown(text, codes):
    return re.sub(f"[{C}]", lambda m: codes[ord(m.group(0)) - FIRST_CODE], text)


ITEM = re.compile(r"^(\s*)(?:[-*+]|\d+[.)])\s+")


def markdown(kind, text, units, hits_of_lines):
    block, start, fenced, listed, off = [], 0, None, False, False

    def flush():
        nonlocal block
        if block:
            units.append(unit(kind, start, "\n".join(block)))
        block = []

    for n, line in enumerate(text.split("\n"), 1):
        strip = line.strip()
        if strip.startswith("<!--"):
            flush()
            switch = re.match(r"<!-- prose: (on|off)\b", strip)
            off = switch.group(1) == "off" if switch else off
            continue
        if off:
            continue
        fence = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            flush()
            if fenced is None:
                fenced = fence.group(1)[:3]
            elif strip.startswith(fenced):
                fenced = None
            continue
        if fenced is not None:
            continue
        if not strip:
            flush()
            continue
        if re.match(r"    |\t", line) and not block and not listed:
            continue  # indented code
        if strip.startswith("|"):
            flush()
            if not re.fullmatch(r"[|\s:-]+", strip):
                # A bar inside of a code span is escaped or part of the code: neither separates cells.
                cells = re.sub(r"`[^`]*`", lambda m: m.group(0).replace("|", "\x02"), strip.replace("\\|", "\x02"))
                for cell in cells.strip("|").split("|"):
                    cell = cell.strip().replace("\x02", "|")
                    if len(cell.split()) >= 3:
                        units.append(unit(kind, n, cell))
            continue
        if len(line) > MAX_COLUMNS and not re.match(r"\s*(\[[^\]]+\]:\s*\S+\s*$|<|!\[)", line):
            hits_of_lines.append((n, "md-columns", f"{len(line)} columns", line))
        if strip.startswith("#"):
            flush()
            units.append(unit(kind, n, strip.lstrip("# ")))
            listed = False
            continue
        item = ITEM.match(line)
        if item:
            flush()
            listed = True
            strip = line[item.end():].strip()
        elif not line.startswith(" "):
            listed = listed and bool(block)
        if strip.startswith(">"):
            strip = strip.lstrip("> ")
        if not block:
            start = n
        block.append(strip)
    flush()


CPP_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^\s()\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])\'', re.S)
HASH_TOKEN = re.compile(r'(?<![^\s;(])#[^\n]*|"(?:\\.|[^"\\\n])*"|(?<![\w])\'[^\'\n]*\'')
PY_TOKEN = re.compile(r'#[^\n]*|[rRbBfFuU]{0,2}("""|\'\'\')(.*?)\1|[rRbBfFuU]{0,2}"(?:\\.|[^"\\\n])*"|[rRbBfFuU]{0,2}\'(?:\\.|[^\'\\\n])*\'', re.S)
HELP = re.compile(r"\bargs\.(?:option|flag|positional|example)\(|\bArgs args\(|add_argument\(|ArgumentParser\(|\.shown = ")


# Rules of dashes, directives, and lines of code within a comment.
NOT_PROSE = re.compile(r"[-=─*]{4,}|namespace\b|clang-format|NOLINT|#|@|\$ |!|.*(?:[(=].*;|[{}])$")


def comment_units(kind, comments, text, units):
    """comments: (offset, words) of comments that run to the end of their line."""
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    block, first, last, column = [], 0, -2, None

    def flush():
        nonlocal block
        if block:
            units.append(unit(kind, first, "\n".join(block)))
        block = []

    for offset, words in comments:
        n = bisect.bisect_right(starts, offset)
        col = offset - starts[n - 1]
        whole = not text[starts[n - 1]:offset].strip()
        body = words.rstrip()
        indent = len(body) - len(body.lstrip())
        body = body.strip()
        if n != last + 1 or col != column or (not whole):
            flush()
        last, column = n, col
        if not body or indent >= 3 or NOT_PROSE.match(body):
            flush()
            continue
        if re.match(r"[-*] |\d+[.)] ", body):
            flush()
            body = ITEM.sub("", body)
        if not block:
            first = n
        block.append(body)
    flush()


WORD = re.compile(r"[A-Za-z][a-z’'-]+")


def is_prose(text, least):
    """Returns whether a literal is a sentence or part of a sentence, not code, a path, a pattern or a
    format."""
    words = text.split()
    if len(words) < least:
        return False
    if re.search(r"[{};]\s*(\\n|$)|\bconst(expr)? \w+|__\w+|::|#include|\b(float|int|void|return|template|asm|mov|ld|st|mma)\b.*[;(]|\.\w+\.\w+\.|</|%\w+,|\bimport \w+", text):
        return False
    plain = sum(1 for w in words if re.fullmatch(r"[A-Za-z][a-z’'-]*[.,;:?!)]*|I|a", w))
    return plain >= least and plain >= 0.6 * len(words)


def string_units(strings, text, units, kind_of):
    """Joins adjacent literals into one text. Literals that one expression concatenates are also joined."""
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    groups = []
    for begin, end, words in strings:
        if groups:
            between = text[groups[-1][-1][1]:begin]
            if len(between) < 240 and (not between.strip() or
                                       re.fullmatch(r"\s*\+[^;{}\"]*(?<!\+)\+\s*|\s*\)?\s*\+\s*(?:std::string\()?", between)):
                groups[-1].append((begin, end, words))
                continue
        groups.append([(begin, end, words)])
    for group in groups:
        out, at = "", group[0][0]
        for begin, end, words in group:
            if out:
                gap = text[at:begin]
                out += ("N" if gap.strip() else "") + "\n" * gap.count("\n")
            out += re.sub(r"\\[nt]", " ", words).replace('\\"', '"').replace("\\\\", "\\")
            at = end
        least = 3
        if is_prose(out.replace("\n", " "), least):
            n = bisect.bisect_right(starts, group[0][0])
            units.append(unit(kind_of(group[0][0]), n, out))


def cpp(path, kind, text, units):
    comments, strings = [], []
    for m in CPP_TOKEN.finditer(text):
        s = m.group(0)
        if s.startswith("//"):
            comments.append((m.start(), s[2:].lstrip("/!")[1:] if s[2:3] in " /!" else s[2:]))
        elif s.startswith("/*"):
            if s.count("\n") or len(s) > 40:
                lines = [re.sub(r"^\s*\*? ?", "", l) for l in s[2:-2].split("\n")]
                units.append(unit(kind, text.count("\n", 0, m.start()) + 1, "\n".join(lines)))
        elif s.startswith('"'):
            strings.append((m.start(), m.end(), s[1:-1]))
    comment_units(kind, comments, text, units)
    if path.startswith("tests/"):
        return

    def kind_of(at):
        head = text[max(0, at - 700):at]
        head = head[max(head.rfind(";"), head.rfind("{\n"), 0):]
        return "help" if HELP.search(head) else "message"

    if not re.search(r"\.(cu|cuh)$", path):
        string_units(strings, text, units, kind_of)


def hashed(path, text, units):
    """Shell, CMake, YAML, Dockerfiles: comments; texts that a shell script prints by `cat <<EOF`."""
    comments, strings, code = [], [], text
    for m in re.finditer(r"cat\s*(?:>&2\s*)?<<-?\s*'?(\w+)'?[^\n]*\n(.*?)\n\1\b", text, re.S):
        if re.search(r"usage", text[max(0, m.start() - 40):m.start() + 80]):
            line = text.count("\n", 0, m.start(2)) + 1
            for i, l in enumerate(m.group(2).split("\n")):
                if len(l.split()) >= 5:
                    units.append(unit("help", line + i, re.sub(r"^\s+\S+(?: \S+)*\s{2,}", "", l).strip()))
        code = code[:m.start(2)] + re.sub(r"[^\n]", " ", m.group(2)) + code[m.end(2):]
    for m in HASH_TOKEN.finditer(code):
        s = m.group(0)
        if s.startswith("#"):
            comments.append((m.start(), s[1:][1:] if s[1:2] == " " else s[1:]))
        elif s.startswith('"') and path.endswith((".cmake", "CMakeLists.txt")):
            strings.append((m.start(), m.end(), s[1:-1]))
    comment_units("script", comments, code, units)
    string_units(strings, code, units, lambda at: "message")


def python(path, text, units):
    comments, strings = [], []
    for m in PY_TOKEN.finditer(text):
        s = m.group(0)
        if s.startswith("#"):
            comments.append((m.start(), s[1:][1:] if s[1:2] == " " else s[1:]))
        elif m.group(2) is not None:
            if re.search(r"(^|\n)[ \t]*$|:\s*$", text[max(0, m.start() - 80):m.start()]):
                line = text.count("\n", 0, m.start()) + 1
                for para in re.split(r"\n\s*\n", m.group(2)):
                    if not re.search(r"^ {4,}\S+ .*\n {4,}", para) or line == 1:
                        units.append(unit("script", line, "\n".join(l.strip() for l in para.split("\n"))))
                    line += para.count("\n") + 2
        else:
            q = re.match(r"[rRbBfFuU]{0,2}[\"']", s).end()
            strings.append((m.start(), m.end(), s[q:-1]))
    comment_units("script", comments, text, units)
    if not path.startswith("tests/"):
        string_units(strings, text, units, lambda at: "help" if HELP.search(text[max(0, at - 200):at]) else "message")


TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
IDENTIFIER = re.compile(r"\b(" + "|".join(sorted(NAMES, key=lambda s: (-len(s), s))) + r")\b")


def code_hits(path, text, hits):
    for m in TEST.finditer(text):
        bad = TEST_NAME.search(m.group(2))
        if bad:
            hits.append((text.count("\n", 0, m.start(2)) + 1, "test-name", f"{m.group(1)}.{m.group(2)}", m.group(0).strip()))
    if not IDENTIFIER.search(text):
        return
    # Identifiers in code: strings and comments are masked.
    code = CPP_TOKEN.sub(lambda m: lines_kept(m.group(0), ""), text)
    for n, line in enumerate(code.split("\n"), 1):
        for name in sorted({m.group(1) for m in IDENTIFIER.finditer(line)}):
            if name in NAMES_IN and not path.startswith(NAMES_IN[name]):
                continue
            hits.append((n, "identifier", f"{name} → {NAMES[name]}", line.strip()))


# ------------------------------------------------------------------------------------------ sentences

ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|etc|vs|Eq|Fig|Sec|No|al|approx|resp|Dr|Mr|St)\.(?=\s)")
SPLIT = re.compile(rf"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[*−–A-Z0-9\u0391-\u03a9{C}])")


def sentences(text):
    """Returns a list of (offset, sentence)."""
    plain = ABBREVIATION.sub(lambda m: m.group(0)[:-1] + "\x03", text)
    at, out = 0, []
    for m in SPLIT.finditer(plain):
        out.append((at, text[at:m.start()]))
        at = m.end()
    out.append((at, text[at:]))
    return out


LETTERS = re.compile(rf"[A-Za-zÀ-ÿ]{{2}}|^[aAI]$|[{C}]|\d{{2}}")


def words_of(s):
    return [w for w in s.split() if LETTERS.search(w)]


def sentence_hits(text):
    for at, s in sentences(text):
        n = len(words_of(s))
        if n > MAX_WORDS:
            yield at, s, "long", f"{n} words"
        n = len(re.findall(r"\bof\b", s, re.I))
        if n > MAX_OF:
            yield at, s, "of-chain", f"{n} × of"
        n = s.count(";")
        if n > 1 and sum(1 for w in s.split() if WORD.match(w)) >= 12:
            yield at, s, "semicolons", f"{n} semicolons"
        m = re.match(r"[\"'(*\s]*What (?!to\b|is\b|are\b[^,]*\?|happens\b[^,.]*\?)\w+", s)
        if m and not s.rstrip().endswith("?") and len(words_of(s)) > 4:
            yield at, s, "what-subject", m.group(0).strip()


# ---------------------------------------------------------------------------------------------- files


def exemptions(root, paths):
    """Returns path:line of each exemption. The style page and the checker's own tests do not count, because
    they quote bad sentences."""
    found = []
    for path in paths:
        if path == STYLE_PAGE or SKIP.match(path) or path.endswith((".png", ".svg")):
            continue
        with open(os.path.join(root, path), encoding="utf8", errors="replace") as f:
            for n, line in enumerate(f, 1):
                if ALLOW.search(line) or "<!-- prose: off -->" in line:
                    found.append(f"{path}:{n}")
    return found


Hit = collections.namedtuple("Hit", "path line rule words sentence kind")


def git(root, *args):
    return subprocess.run(["git", "-C", root, *args], check=True, stdout=subprocess.PIPE).stdout.decode("utf8", "replace")


def public_headers(root):
    try:
        with open(os.path.join(root, "cmake/public_headers.cmake"), encoding="utf8") as f:
            return set(re.findall(r"^\s+(\S+\.h)$", f.read(), re.M))
    except OSError:
        return set()


def kind_of_path(path, public):
    if path.endswith(".md"):
        if os.path.basename(path) == "CHANGELOG.md":
            return "changelog"
        return "notes" if path.startswith("docs/notes/") else "docs"
    if path in public:
        return "public header"
    return "test comment" if path.startswith("tests/") else "comment"


def units_of(root, path, public):
    """The units and line hits of one file, or None if the file has no prose."""
    name = os.path.basename(path)
    is_cpp = path.endswith((".h", ".cpp", ".cu", ".cuh", ".hpp", ".cc", ".c"))
    is_hash = path.endswith((".cmake", ".sh", ".yml", ".yaml")) or name in ("CMakeLists.txt", "Dockerfile", "pre-commit", "dev", "run")
    if not (is_cpp or is_hash or path.endswith((".md", ".py"))) or SKIP.match(path) or path in GENERATED:
        return None
    try:
        with open(os.path.join(root, path), encoding="utf8", errors="replace") as f:
            text = f.read()
    except OSError:
        return None
    units, hits = [], []
    kind = kind_of_path(path, public)
    if path.endswith(".md"):
        markdown(kind, text, units, hits)
    elif path.endswith(".py"):
        python(path, text, units)
    elif is_cpp:
        cpp(path, kind, text, units)
        code_hits(path, text, hits)
    else:
        hashed(path, text, units)
    units.sort(key=lambda u: u.line)
    return kind, units, hits


STEM = re.compile(r"[a-z]+")


def check_file(root, path, public, active):
    found = units_of(root, path, public)
    if found is None:
        return []
    kind, units, line_hits = found
    hits = [Hit(path, n, r, words, s, "code" if r in ("identifier", "test-name") else kind)
            for n, r, words, s in line_hits if r in active]
    # One long text, so that each pattern runs once over a file.
    whole = "\x00" + "\x00".join(u.text for u in units)
    starts, at = [], 1
    for u in units:
        starts.append(at)
        at += len(u.text) + 1
    words_here = frozenset(STEM.findall(whole.lower()))
    cut = {}

    def add(i, offset, rule_id, words, sentence):
        u = units[i]
        if rule_id in u.allowed or u.kind not in BY_ID[rule_id].kinds:
            return
        hits.append(Hit(path, u.line + u.text.count("\n", 0, offset), rule_id, " ".join(shown(words, u.codes).split()),
                        " ".join(shown(sentence, u.codes).split()), u.kind))

    for r in RULES:
        if r.pattern is None or r.id not in active or words_here.isdisjoint(r.stems):
            continue
        for m in r.pattern.finditer(whole):
            i = bisect.bisect_right(starts, m.start()) - 1
            if m.start() < starts[0]:
                i = 0
            offset = max(0, m.start() - starts[i])
            if r.id in BEFORE and BEFORE[r.id].search(units[i].text[max(0, offset - 80):offset]):
                continue
            if i not in cut:
                cut[i] = sentences(units[i].text)
            k = bisect.bisect_right([a for a, _ in cut[i]], offset + len(m.group(0)) - len(m.group(0).lstrip())) - 1
            add(i, offset, r.id, m.group(0).replace("\x00", "").strip(), cut[i][max(k, 0)][1])
    if active & {"long", "of-chain", "semicolons", "what-subject"}:
        for i, u in enumerate(units):
            for offset, s, rule_id, words in sentence_hits(u.text):
                if rule_id in active:
                    add(i, offset, rule_id, words, s)
    return hits


def check_commits(root, commits, active):
    hits = []
    log = git(root, "log", "--no-merges", "--format=%h%x1f%s%x1f%b%x1e", commits)
    for record in log.split("\x1e"):
        if record.count("\x1f") < 2:
            continue
        sha, subject, body = record.strip("\n").split("\x1f")[:3]
        found = []
        if len(subject) > MAX_SUBJECT:
            found.append(("commit-length", f"{len(subject)} characters"))
        if ";" in subject:
            found.append(("commit-joined", ";"))
        first = re.sub(r"^[\w./()\[\], -]{1,40}: ", "", subject).split(" ")[0]
        if first.lower().strip(",.:;") not in IMPERATIVE:
            found.append(("commit-mood", first))
        if not body.strip():
            found.append(("commit-body", "no body"))
        hits += [Hit("commit", sha, r, words, subject, "commit") for r, words in found if r in active]
    return hits


# --------------------------------------------------------------------------------------------- output


def folder_of(hit):
    if hit.kind == "commit":
        return "(commits)"
    parts = hit.path.split("/")
    if parts[0] == "docs" and len(parts) > 2:
        return "docs/" + parts[1]
    if parts[0] == "backends" and len(parts) > 2:
        return "backends/" + parts[1]
    return parts[0] if len(parts) > 1 else "(root)"


def table(title, hits, column_of):
    columns = sorted({column_of(h) for h in hits})
    counts = collections.Counter((h.rule, column_of(h)) for h in hits)
    by_rule = collections.Counter(h.rule for h in hits)
    width = max([len("rule")] + [len(r) for r in by_rule])
    lines = [title, "  " + "rule".ljust(width) + "  total  " + "  ".join(columns)]
    for r in RULES:
        if by_rule[r.id]:
            lines.append("  " + r.id.ljust(width) + f"  {by_rule[r.id]:5d}  " +
                         "  ".join((str(counts[r.id, c]) if counts[r.id, c] else "·").rjust(len(c)) for c in columns))
    total = collections.Counter(column_of(h) for h in hits)
    lines.append("  " + "all".ljust(width) + f"  {len(hits):5d}  " + "  ".join(str(total[c]).rjust(len(c)) for c in columns))
    return "\n".join(lines)


def rules_of(text):
    active = {r.id for r in RULES}
    if text:
        names = text.split(",")
        for n in names:
            if n.lstrip("-") not in BY_ID:
                raise SystemExit(f"prose.py: unknown rule '{n.lstrip('-')}'; --list prints the rules")
        only = {n for n in names if not n.startswith("-")}
        active = (only or active) - {n[1:] for n in names if n.startswith("-")}
    return active


def main():
    p = argparse.ArgumentParser(prog="prose.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("paths", nargs="*", help="files or folders to check, relative to the root; default: all files that git tracks")
    p.add_argument("--root", default=".", help="root of the repository (default: that of the current folder)")
    p.add_argument("--rules", metavar="LIST", help="comma-separated rules to check; --rules=-RULE leaves one out")
    p.add_argument("--commits", metavar="RANGE", help="also check the commits of this range, such as main..HEAD")
    p.add_argument("--summary", action="store_true", help="print counts instead of hits")
    p.add_argument("--sentences", action="store_true", help="print the sentence of each hit, too")
    p.add_argument("--list", action="store_true", help="print the rules")
    p.add_argument("--pool", metavar="N", type=int, help="print N random sentences of the tree, to judge the language")
    p.add_argument("--seed", type=int, default=2026, help="seed of --sample and --pool")
    o = p.parse_args()
    if o.list:
        for r in RULES:
            print(f"{r.id:14} {r.group:9} {r.advice}")
        return 0
    active = rules_of(o.rules)
    try:
        root = git(o.root, "rev-parse", "--show-toplevel").strip()
        tracked = git(root, "ls-files", "-z").split("\0")
    except (subprocess.CalledProcessError, OSError):
        print(f"prose.py: '{o.root}' is not in a git repository", file=sys.stderr)
        return 2
    wanted = [os.path.normpath(x) for x in o.paths]
    paths = sorted(x for x in tracked if x and (not wanted or any(x == w or x.startswith(w + "/") for w in wanted)))
    for w in wanted:
        if w != "." and not any(x == w or x.startswith(w + "/") for x in tracked):
            print(f"prose.py: git tracks no '{w}'", file=sys.stderr)
            return 2
    public = public_headers(root)

    if o.pool:
        pool = []
        for path in paths:
            found = units_of(root, path, public)
            for u in found[1] if found else []:
                for at, s in sentences(u.text):
                    if len(words_of(s)) >= 5:
                        pool.append((path, u.line + u.text.count("\n", 0, at), u.kind, " ".join(shown(s, u.codes).split())))
        by_kind = collections.Counter(x[2] for x in pool)
        print(f"{len(pool)} sentences:", ", ".join(f"{k} {n}" for k, n in sorted(by_kind.items())))
        for i, (path, line, kind, s) in enumerate(random.Random(o.seed).sample(pool, min(o.pool, len(pool))), 1):
            print(f"{i}. {path}:{line} ({kind}) {s}")
        return 0

    hits = [h for path in paths for h in check_file(root, path, public, active)]
    if o.commits:
        try:
            hits += check_commits(root, o.commits, active)
        except subprocess.CalledProcessError:
            return 2
    hits = sorted(set(hits), key=lambda h: (h.path, str(h.line).rjust(8), h.rule, h.words, h.sentence))

    if o.summary and hits:
        print(table("by kind of text", hits, lambda h: h.kind) + "\n\n" + table("by folder", hits, folder_of))
    for h in [] if o.summary else hits:
        print(f"{h.path}:{h.line}: {h.rule}: \"{h.words}\": {BY_ID[h.rule].advice}")
        if o.sentences:
            print(f"    {h.sentence}")
    exempt = exemptions(root, paths)
    if len(exempt) > MAX_EXEMPTIONS:
        print(f"{len(exempt)} exemptions, at most {MAX_EXEMPTIONS} are allowed:", *exempt, sep="\n  ")
    print(f"{len(hits)} hits, {len(exempt)} exemptions in {len(paths)} files")
    return 1 if hits or len(exempt) > MAX_EXEMPTIONS else 0


if __name__ == "__main__":
    sys.exit(main())
