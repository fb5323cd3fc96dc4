#!/usr/bin/env python3
"""Generated chat-template cases: Pagoda's interpreter and jinja2, set up as transformers does.

usage: chat_templates_peer.py PAGODA_BINARY [--programs=N] [--chats=N]
Random programs over a random chat, then random chats through templates as models have them. Where jinja2 raises, Pagoda
must refuse; else the texts must be equal.
"""
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent import futures

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|end|>"}
SHOWN = 6


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[jinja2.ext.loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception


def reference(source, chat):
    """The text, or None where the library raises."""
    try:
        return ENVIRONMENT.from_string(source).render(
            messages=chat["messages"], tools=chat.get("tools"), documents=None,
            add_generation_prompt=chat["add_generation_prompt"], **TOKENS)
    except Exception:  # jinja2 lets Python's own errors through: TypeError, KeyError, IndexError, ...
        return None


def pagoda_texts(pagoda, source, chats):
    with tempfile.TemporaryDirectory() as directory:
        open(directory + "/tokenizer_config.json", "w", encoding="utf-8").write(
            json.dumps({"chat_template": source, **TOKENS}))
        lines = "".join(json.dumps(chat) + "\n" for chat in chats)
        done = subprocess.run([pagoda, "render", directory], input=lines.encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) == len(chats):
            return answers
        return [{"error": done.stderr.decode()[-300:]}] * len(chats)


TEXTS = ["", "Hello", "a,b,,c", "  two  words ", "naïve café 😀", "line\nbreak", "{{ no }}", "x'y\"z", "<b>&amp;</b>", "12", "-3.5",
         "ÄÖ straße", "<think>hm</think>answer", "tab\there", "True", "a.b.c"]


class Chats:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self):
        return "".join(self.random.choice(TEXTS) for _ in range(self.random.randint(1, 2)))

    def value(self, depth=0):
        kind = self.random.randint(0, 7 if depth < 2 else 4)
        return [self.random.randint(-3, 100), self.random.choice([0.5, -2.25, 1e3, 3.0]), self.text(),
                self.random.choice([True, False]), None][kind] if kind < 5 else \
            [self.value(depth + 1) for _ in range(self.random.randint(0, 3))] if kind == 5 else \
            {self.random.choice(["a", "b", "key", "ü"]): self.value(depth + 1) for _ in range(self.random.randint(0, 3))}

    def call(self):
        return {"type": "function", "id": "call_1",
                "function": {"name": "f", "arguments": {"x": self.value(), "city": self.text()}}}

    def tool(self, n):
        return {"type": "function", "function": {"name": f"f{n}", "description": self.text(), "parameters": {
            "type": "object", "properties": {"city": {"type": "string", "description": self.text()}}, "required": ["city"]}}}

    def next(self):
        messages = []
        if self.random.random() < 0.4:
            messages.append({"role": "system", "content": self.text()})
        for i in range(self.random.randint(1, 4)):
            messages.append({"role": "user", "content": self.text()})
            kind = self.random.random()
            if kind < 0.55:
                messages.append({"role": "assistant", "content": self.text()})
            elif kind < 0.75:
                messages.append({"role": "assistant", "content": self.random.choice([None, "", self.text()]),
                                 "tool_calls": [self.call() for _ in range(self.random.randint(1, 2))]})
                messages.append({"role": "tool", "name": "f", "content": self.text()})
        if self.random.random() < 0.1:
            messages.append({"role": self.random.choice(["user", "system", "other"]), "content": self.text()})
        chat = {"messages": messages, "add_generation_prompt": self.random.random() < 0.5}
        if self.random.random() < 0.3:
            chat["tools"] = [self.tool(n) for n in range(self.random.randint(1, 2))]
        return chat


class Programs:
    """Typed random expressions, so that most of them mean something."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = {}

    def pick(self, *options):
        return self.random.choice(options)()

    def constant(self, text):
        return repr(text) if self.random.random() < 0.5 or '"' in text else json.dumps(text, ensure_ascii=False)

    def name_of(self, kind):
        names = [n for n, k in self.names.items() if k == kind]
        return self.random.choice(names) if names else None

    def text(self, d=0):
        if d > 2 or self.random.random() < 0.3:
            return self.name_of("text") or self.random.choice([
                self.constant(self.random.choice(TEXTS)), "messages[0].content", "messages[0]['role']", "bos_token"])
        t = self.text
        return self.pick(
            lambda: f"{t(d + 1)} ~ {self.any(d + 1)}", lambda: f"({t(d + 1)} + {t(d + 1)})",
            lambda: f"({t(d + 1)}|{self.random.choice(['trim', 'upper', 'lower', 'capitalize', 'title', 'string', 'safe'])})",
            lambda: f"({t(d + 1)}|replace({self.constant('a')}, {t(d + 1)}))",
            lambda: f"{t(d + 1)}.{self.random.choice(['strip()', 'upper()', 'lower()', 'lstrip()', 'rstrip()', 'title()', 'capitalize()'])}",
            lambda: f"{t(d + 1)}.replace({self.constant('l')}, {t(d + 1)})", lambda: f"{t(d + 1)}.strip('\\n ')",
            lambda: f"({t(d + 1)})[{self.random.choice(['0', '-1', '1:', ':2', '::2', '::-1', '-2:', '1:3'])}]",
            lambda: f"({self.items(d + 1)}|join({self.random.choice(['', repr(', '), repr('-')])}))",
            lambda: f"({self.any(d + 1)}|tojson)", lambda: f"({self.any(d + 1)}|tojson(indent={self.random.randint(1, 4)}))",
            lambda: f"({t(d + 1)} if {self.truth(d + 1)} else {t(d + 1)})", lambda: f"{t(d + 1)}.split({self.random.choice(['', repr(','), repr('l')])})[0]",
            lambda: f"(missing|default({t(d + 1)}))", lambda: f"({t(d + 1)}|default({t(d + 1)}, true))", lambda: f"{t(d + 1)} * {self.random.randint(0, 3)}",
            lambda: f"({t(d + 1)}|{self.random.choice(['first', 'last'])})", lambda: f"({self.number(d + 1)}|string)")

    def number(self, d=0):
        if d > 2 or self.random.random() < 0.35:
            return self.name_of("number") or self.random.choice(["0", "1", "7", "2.5", "-3", "10"])
        n = self.number
        return self.pick(
            lambda: f"({n(d + 1)} {self.random.choice(['+', '-', '*', '//', '%', '/'])} {n(d + 1)})", lambda: f"({self.items(d + 1)}|length)",
            lambda: f"({self.text(d + 1)}|length)", lambda: f"({self.text(d + 1)}|int)", lambda: f"({n(d + 1)}|abs)", lambda: f"-{n(d + 1)}",
            lambda: f"({n(d + 1)} if {self.truth(d + 1)} else {n(d + 1)})", lambda: f"{self.text(d + 1)}.count('a')", lambda: f"{self.text(d + 1)}.find('l')",
            lambda: f"({n(d + 1)}|round|int)", lambda: f"({n(d + 1)} ** 2)")

    def truth(self, d=0):
        if d > 2 or self.random.random() < 0.25:
            return self.random.choice(["true", "false", "add_generation_prompt", "tools", "none"])
        b = self.truth
        return self.pick(
            lambda: f"({self.number(d + 1)} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {self.number(d + 1)})",
            lambda: f"({self.text(d + 1)} {self.random.choice(['==', '!=', '<'])} {self.text(d + 1)})", lambda: f"(not {b(d + 1)})",
            lambda: f"({b(d + 1)} {self.random.choice(['and', 'or'])} {b(d + 1)})", lambda: f"({self.text(d + 1)} {self.random.choice(['in', 'not in'])} {self.text(d + 1)})",
            lambda: f"({self.any(d + 1)} is {self.random.choice(['', 'not '])}{self.random.choice(['string', 'number', 'mapping', 'iterable', 'sequence', 'none', 'defined', 'boolean', 'true', 'false', 'integer', 'float', 'undefined'])})",
            lambda: f"({self.any(d + 1)} in {self.items(d + 1)})", lambda: f"(missing is defined)", lambda: f"({self.number(d + 1)} is {self.random.choice(['odd', 'even', 'divisibleby 3', 'eq 7'])})",
            lambda: f"{self.text(d + 1)}.{self.random.choice(['startswith', 'endswith'])}({self.text(d + 1)})", lambda: f"(messages[0] is mapping and messages[0].tool_calls is defined)")

    def items(self, d=0):
        if d > 2 or self.random.random() < 0.3:
            return self.name_of("items") or self.random.choice(["(messages|map(attribute='role')|list)", "[1, 2, 3]", "['b', 'a', 'c']", "[]"])
        i = self.items
        return self.pick(
            lambda: "[" + ", ".join(self.any(d + 1) for _ in range(self.random.randint(0, 3))) + "]", lambda: f"({i(d + 1)} + {i(d + 1)})",
            lambda: f"({i(d + 1)})[{self.random.choice(['1:', ':2', '::-1', '-1:'])}]", lambda: f"{self.text(d + 1)}.split({self.random.choice(['', repr(','), repr('e')])})",
            lambda: f"(range({self.random.randint(0, 5)})|list)", lambda: f"({i(d + 1)}|reverse|list)", lambda: f"({self.mapping(d + 1)}.{self.random.choice(['keys', 'values', 'items'])}()|list)",
            lambda: f"(messages|selectattr('role', 'equalto', {self.constant(self.random.choice(['user', 'tool']))})|map(attribute='content')|list)",
            lambda: f"(messages|rejectattr('content')|list)", lambda: f"(messages|selectattr('tool_calls', 'defined')|list)", lambda: f"({self.mapping(d + 1)}|items|list)",
            lambda: f"({i(d + 1)}|map('string')|list)", lambda: f"({i(d + 1)}|select('string')|list)", lambda: f"({i(d + 1)}|reject('none')|list)", lambda: f"({self.text(d + 1)}|list)",
            lambda: f"({i(d + 1)}|map('string')|sort)", lambda: f"({i(d + 1)}|map('string')|unique|list)", lambda: f"({i(d + 1)}|map('string')|map('upper')|list)")

    def mapping(self, d=0):
        if d > 2 or self.random.random() < 0.4:
            return self.name_of("mapping") or self.random.choice(["messages[0]", "{'a': 1, 'b': [2, none]}", "{}"])
        return self.pick(lambda: "{" + ", ".join(f"{self.constant(k)}: {self.any(d + 1)}" for k in self.random.sample(["a", "b", "key", "ü"], 2)) + "}",
                         lambda: "messages[-1]", lambda: f"dict(a={self.any(d + 1)}, b={self.any(d + 1)})")

    def any(self, d=0):
        return self.pick(lambda: self.text(d), lambda: self.text(d), lambda: self.number(d), lambda: self.truth(d), lambda: self.items(d),
                         lambda: self.mapping(d), lambda: f"{self.mapping(d + 1)}.get('a')", lambda: f"{self.mapping(d + 1)}['b']", lambda: "none", lambda: "messages[0].nothing")

    def block(self, d=0):
        kinds = [self.out, self.out, self.assign, self.branch, self.loop, self.space, self.scope, self.macro]
        return "".join(self.random.choice(kinds if d < 2 else kinds[:3])(d) for _ in range(self.random.randint(1, 3)))

    def tag(self, text):
        left, right = self.random.choice(["", "", "-"]), self.random.choice(["", "", "-"])
        return "{%" + left + " " + text + " " + right + "%}"

    def gap(self):
        return self.random.choice(["", "", "\n", "  ", "\n  ", " x ", "\n\ny\n"])

    def out(self, d):
        left = self.random.choice(["", "", "-"])
        return self.gap() + "{{" + left + " " + self.any() + " }}" + self.gap()

    def assign(self, d):
        kind = self.random.choice(["text", "number", "items", "mapping"])
        name = f"v{len(self.names) % 5}"
        source = self.tag(f"set {name} = {getattr(self, kind)()}")
        self.names[name] = kind
        return source + self.gap()

    def scoped(self, make):
        before = dict(self.names)
        source = make()
        self.names = before
        return source

    def branch(self, d):
        return self.scoped(lambda: self.tag("if " + self.truth()) + self.block(d + 1) +
                           (self.tag("elif " + self.truth()) + self.block(d + 1) if self.random.random() < 0.4 else "") +
                           (self.tag("else") + self.block(d + 1) if self.random.random() < 0.5 else "") + self.tag("endif") + self.gap())

    def loop(self, d):
        def make():
            head = self.random.choice([f"for m in {self.items()}", "for m in messages", f"for k, m in {self.mapping()}.items()",
                                       f"for m in messages if m.role == 'user'"])
            told = self.random.choice(["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.previtem is defined",
                                       "loop.nextitem is defined", "m", "m is string", "m.content", "loop.cycle('a', 'b')"])
            stop = self.random.choice(["", "", "{% if loop.index > 2 %}{% break %}{% endif %}", "{% if m is mapping and m.role == 'system' %}{% continue %}{% endif %}"])
            other = self.tag("else") + "none" if self.random.random() < 0.2 else ""
            return self.tag(head) + stop + "{{ " + told + " }}" + self.block(d + 1) + other + self.tag("endfor") + self.gap()
        return self.scoped(make)

    def space(self, d):
        return ("{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ m.role[0] %}"
                "{% endfor %}{{ ns.n }}{{ ns.s }}") + self.gap()

    def scope(self, d):
        return self.scoped(lambda: self.tag("set w") + self.block(d + 1) + self.tag("endset") + "{{ w|trim }}" + self.gap())

    def macro(self, d):
        return self.scoped(lambda: self.tag(f"macro f{d}(p, q={self.text()})") + "[{{ p }}|{{ q }}]" + self.tag("endmacro") +
                           "{{ " + f"f{d}({self.any()})" + " }}{{ " + f"f{d}({self.text()}, q={self.any()})" + " }}")

    def next(self):
        self.names = {}
        return self.block()


CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
           "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
           "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
           "{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
         "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
         "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}")
ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
          "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
          "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")
PHI3 = ("{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
        "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
TOOLS = ("{%- set ns = namespace(index=0) %}\n{%- if tools %}\n    {{- '# Tools\n' }}\n    {%- for tool in tools %}\n        {{- tool | tojson }}\n        {{- '\n' if not loop.last }}\n"
         "    {%- endfor %}\n{%- endif %}\n{%- for message in messages %}\n    {%- if message.content is string %}\n        {%- set content = message.content %}\n    {%- else %}\n"
         "        {%- set content = '' %}\n    {%- endif %}\n    {%- if '</think>' in content %}\n        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n    {%- endif %}\n"
         "    {%- if message.tool_calls %}\n        {%- for call in message.tool_calls %}\n            {%- set ns.index = ns.index + 1 %}\n"
         "            {{- '<call ' ~ ns.index ~ '>' + (call.function.arguments | tojson(indent=2)) + '</call>' }}\n        {%- endfor %}\n    {%- endif %}\n"
         "    {{- message.role | upper + ': ' + content + '\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- 'ASSISTANT:' }}\n{%- endif %}\n")


def templates():
    found = {"chatml": CHATML, "mistral": MISTRAL, "gemma": GEMMA, "zephyr": ZEPHYR, "phi3": PHI3, "tools": TOOLS}
    root = os.environ.get("PAGODA_CONFORMANCE_DIR", "../shared/conformance")
    for path in sorted(glob.glob(root + "/tokenizers/*/tokenizer_config.json")):
        template = json.load(open(path, encoding="utf-8")).get("chat_template")
        if isinstance(template, str) and "strftime_now" not in template:
            found["published_" + os.path.basename(os.path.dirname(path))] = template
    return found


class Report:
    def __init__(self):
        self.num_cases = self.num_raised = self.num_differences = 0

    def add(self, source, chat, expected, answer):
        self.num_cases += 1
        self.num_raised += expected is None
        if ("text" in answer) == (expected is not None) and answer.get("text") == expected:
            return
        self.num_differences += 1
        if self.num_differences <= SHOWN:
            print(f"template {source!r}\n chat {json.dumps(chat, ensure_ascii=False)}\n  pagoda  {answer!r}\n  library {expected!r}")


def main():
    pagoda, num_programs, num_chats = sys.argv[1], 5000, 1000
    for argument in sys.argv[2:]:
        name, value = argument.split("=")
        if name == "--programs":
            num_programs = int(value)
        elif name == "--chats":
            num_chats = int(value)
    report = Report()
    chats, programs = Chats(seed=1), Programs(seed=1)
    cases = [(programs.next(), chats.next()) for _ in range(num_programs)]
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = pool.map(lambda case: pagoda_texts(pagoda, case[0], [case[1]])[0], cases)
        for (source, chat), answer in zip(cases, answers):
            report.add(source, chat, reference(source, chat), answer)
    print(f"programs: {report.num_cases} cases ({report.num_raised} of them errors), {report.num_differences} differences", flush=True)
    for name, source in templates().items():
        before = report.num_differences
        asked = [chats.next() for _ in range(num_chats)]
        for chat, answer in zip(asked, pagoda_texts(pagoda, source, asked)):
            report.add(source, chat, reference(source, chat), answer)
        print(f"{name}: {num_chats} chats, {report.num_differences - before} differences", flush=True)
    print(f"chat templates: {report.num_differences} differences")
    return 1 if report.num_differences else 0


if __name__ == "__main__":
    sys.exit(main())
