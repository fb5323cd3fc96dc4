#include "engine/text/jinja/interpreter.h"

#include <cmath>
#include <ctime>
#include <limits>
#include <utility>

#include "absl/base/attributes.h"
#include "engine/text/jinja/call.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/methods.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/predicates.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// Of statements and expressions within each other, over all macros that run: evaluation recurses.
constexpr int kMaxEvaluationDepth = 1500;

absl::Status CheckExtent(const Extent& extent) {
  if (extent.depth > kMaxExtent.depth)
    return TemplateError(absl::StrCat("a value is nested deeper than ", kMaxExtent.depth));
  if (extent.num_nodes > kMaxExtent.num_nodes || extent.text_bytes > kMaxExtent.text_bytes)
    return TemplateError("a value is too large");
  return absl::OkStatus();
}

// What a statement did to the loop around it.
enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const Dict& globals, const RenderLimits& limits)
      : limits_(limits), budget_(limits.max_steps) {
    scopes_.push_back(globals);
  }

  absl::StatusOr<MarkedString> Run(const Node& root) {
    PAGODA_RETURN_IF_ERROR(Execute(root).status());
    return std::move(output_);
  }

 private:
  // ---- Names. The innermost scope is the last; `set` writes there.
  Value Lookup(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > scope_floor_;) {
      if (const Value* found = scopes_[i].Find(name)) return *found;
    }
    // A macro sees its own scopes and the template's globals.
    if (const Value* found = scopes_[0].Find(name)) return *found;
    return Value::UndefinedNamed(name);
  }
  void Assign(const std::string& name, Value value) { scopes_.back().Set(name, std::move(value)); }

  absl::Status AssignTargets(const std::vector<std::string>& names, Value value) {
    if (names.size() == 1) {
      Assign(names[0], std::move(value));
      return absl::OkStatus();
    }
    PAGODA_ASSIGN_OR_RETURN(List parts, Elements(value, &budget_));
    if (parts.size() != names.size()) {
      return TemplateError(
          absl::StrCat("cannot unpack ", parts.size(), " values into ", names.size(), " names"));
    }
    for (size_t i = 0; i < names.size(); ++i) Assign(names[i], std::move(parts[i]));
    return absl::OkStatus();
  }

  // Before every node; the caller counts depth_ down after it.
  absl::Status Enter() {
    PAGODA_RETURN_IF_ERROR(budget_.Spend(1));
    if (depth_ >= kMaxEvaluationDepth) return TemplateError("evaluation is nested too deeply");
    ++depth_;
    return absl::OkStatus();
  }

  // ---- Statements.
  absl::StatusOr<Flow> Execute(const Node& node) {
    PAGODA_RETURN_IF_ERROR(Enter());
    absl::StatusOr<Flow> flow = ExecuteNode(node);
    --depth_;
    return flow;
  }

  absl::StatusOr<Flow> ExecuteNode(const Node& node) {
    switch (node.kind) {
      case NodeKind::kText:
        PAGODA_RETURN_IF_ERROR(Write(node.constant.as_string()));
        return Flow::kNext;
      case NodeKind::kOutput: {
        PAGODA_ASSIGN_OR_RETURN(Value value, Evaluate(*node.children[0]));
        PAGODA_RETURN_IF_ERROR(Write(value.ToText()));
        return Flow::kNext;
      }
      case NodeKind::kBlock:
        for (const NodePtr& child : node.children) {
          PAGODA_ASSIGN_OR_RETURN(Flow flow, Execute(*child));
          if (flow != Flow::kNext) return flow;
        }
        return Flow::kNext;
      case NodeKind::kIf: {
        PAGODA_ASSIGN_OR_RETURN(Value condition, Evaluate(*node.children[0]));
        if (condition.Truthy()) return Execute(*node.children[1]);
        if (node.children[2] != nullptr) return Execute(*node.children[2]);
        return Flow::kNext;
      }
      case NodeKind::kFor:
        return ExecuteFor(node);
      case NodeKind::kSet:
        PAGODA_RETURN_IF_ERROR(ExecuteSet(node));
        return Flow::kNext;
      case NodeKind::kSetBlock: {
        MarkedString outer = std::exchange(output_, {});
        const absl::StatusOr<Flow> flow = Execute(*node.children[0]);
        MarkedString captured = std::exchange(output_, std::move(outer));
        if (!flow.ok()) return flow.status();
        PAGODA_RETURN_IF_ERROR(AssignTargets(node.names, Value::String(std::move(captured))));
        return Flow::kNext;
      }
      case NodeKind::kMacro:
        Assign(node.name, Value::MacroOf(&node));
        return Flow::kNext;
      case NodeKind::kBreak:
        return Flow::kBreak;
      case NodeKind::kContinue:
        return Flow::kContinue;
      default:
        return TemplateError("an expression stands where a statement should");
    }
  }

  absl::Status Write(const MarkedString& text) {
    if (output_.text.size() + text.text.size() > limits_.max_output_bytes) {
      return TemplateError(absl::StrCat("the output passes ", limits_.max_output_bytes, " bytes"));
    }
    output_.Append(text);
    return budget_.SpendBytes(text.text.size());
  }

  absl::Status ExecuteSet(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value value, Evaluate(*node.children[0]));
    if (node.name.empty()) return AssignTargets(node.names, std::move(value));
    const Value target = Lookup(node.names[0]);
    if (!target.is_namespace())
      return TemplateError("cannot assign attribute on non-namespace object");
    if (value.extent().has_namespace) return NestedNamespace();
    target.as_namespace().attributes.Set(node.name, std::move(value));
    return absl::OkStatus();
  }

  static absl::Status NestedNamespace() {
    return TemplateError("a namespace cannot hold a namespace");
  }

  absl::StatusOr<Flow> ExecuteFor(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value iterable, Evaluate(*node.children[0]));
    PAGODA_ASSIGN_OR_RETURN(List items, Elements(iterable, &budget_));
    if (node.children[1] != nullptr) PAGODA_RETURN_IF_ERROR(FilterItems(node, &items));
    if (items.empty()) {
      if (node.children[3] != nullptr) return Execute(*node.children[3]);
      return Flow::kNext;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      scopes_.emplace_back();
      Assign("loop", LoopValue(items, i));
      absl::Status status = AssignTargets(node.names, items[i]);
      absl::StatusOr<Flow> flow = Flow::kNext;
      if (status.ok()) flow = Execute(*node.children[2]);
      scopes_.pop_back();
      PAGODA_RETURN_IF_ERROR(status);
      if (!flow.ok()) return flow;
      if (*flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  absl::Status FilterItems(const Node& node, List* items) {
    List kept;
    scopes_.emplace_back();
    absl::Status status;
    for (Value& item : *items) {
      status = AssignTargets(node.names, item);
      if (!status.ok()) break;
      Result holds = Evaluate(*node.children[1]);
      status = holds.status();
      if (!status.ok()) break;
      if (holds->Truthy()) kept.push_back(std::move(item));
    }
    scopes_.pop_back();
    *items = std::move(kept);
    return status;
  }

  static Value LoopValue(const List& items, size_t i) {
    const int64_t index = static_cast<int64_t>(i), length = static_cast<int64_t>(items.size());
    Dict loop;
    loop.Set("index", Value::Int(index + 1));
    loop.Set("index0", Value::Int(index));
    loop.Set("revindex", Value::Int(length - index));
    loop.Set("revindex0", Value::Int(length - index - 1));
    loop.Set("first", Value::Bool(i == 0));
    loop.Set("last", Value::Bool(i + 1 == items.size()));
    loop.Set("length", Value::Int(length));
    if (i > 0) loop.Set("previtem", items[i - 1]);
    if (i + 1 < items.size()) loop.Set("nextitem", items[i + 1]);
    return Value::DictOf(std::move(loop));
  }

  // ---- Expressions.
  Result Evaluate(const Node& node) {
    PAGODA_RETURN_IF_ERROR(Enter());
    Result value = EvaluateNode(node);
    --depth_;
    if (value.ok()) PAGODA_RETURN_IF_ERROR(CheckExtent(value->extent()));
    return value;
  }

  // Kinds with values of their own are functions of their own, and not inlined: what lies here lies
  // on the stack of every level of a recursion.
  Result EvaluateNode(const Node& node) {
    switch (node.kind) {
      case NodeKind::kLiteral:
        return node.constant;
      case NodeKind::kName:
        return Lookup(node.name);
      case NodeKind::kList:
      case NodeKind::kTuple:
        return EvaluateList(node);
      case NodeKind::kDict:
        return EvaluateDict(node);
      case NodeKind::kAttribute:
        return EvaluateAttribute(node);
      case NodeKind::kSubscript:
        return EvaluateSubscript(node);
      case NodeKind::kSlice:
        return EvaluateSlice(node);
      case NodeKind::kCall:
        return EvaluateCall(node);
      case NodeKind::kFilter:
        return EvaluateFilter(node);
      case NodeKind::kTest:
        return EvaluateTest(node);
      case NodeKind::kUnary:
        return EvaluateUnary(node);
      case NodeKind::kBinary:
        return EvaluateBinary(node);
      case NodeKind::kConditional:
        return EvaluateConditional(node);
      default:
        return TemplateError("a statement stands where an expression should");
    }
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateList(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(List items, EvaluateAll(node, 0));
    return Value::ListOf(std::move(items), node.kind == NodeKind::kTuple);
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateAttribute(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value object, Evaluate(*node.children[0]));
    if (object.is_undefined()) return UndefinedError(object);
    return Attribute(object, node.name);
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateFilter(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value operand, Evaluate(*node.children[0]));
    PAGODA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(node));
    return ApplyFilter(node.name, operand, arguments, &budget_);
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateTest(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value operand, Evaluate(*node.children[0]));
    PAGODA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(node));
    PAGODA_ASSIGN_OR_RETURN(bool holds, ApplyPredicate(node.name, operand, arguments, &budget_));
    return Value::Bool(holds != node.negated);
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateUnary(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value operand, Evaluate(*node.children[0]));
    if (node.name == "not") return Value::Bool(!operand.Truthy());
    return UnaryOperator(node.name, operand);
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateConditional(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value condition, Evaluate(*node.children[1]));
    if (condition.Truthy()) return Evaluate(*node.children[0]);
    if (node.children[2] == nullptr) return Value();
    return Evaluate(*node.children[2]);
  }

  static absl::Status UndefinedError(const Value& value) {
    return TemplateError(absl::StrCat("'", value.undefined_name(), "' is undefined"));
  }

  absl::StatusOr<List> EvaluateAll(const Node& node, size_t begin) {
    List values;
    for (size_t i = begin; i < node.children.size(); ++i) {
      PAGODA_ASSIGN_OR_RETURN(Value value, Evaluate(*node.children[i]));
      values.push_back(std::move(value));
    }
    return values;
  }

  absl::StatusOr<Arguments> EvaluateArguments(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(List values, EvaluateAll(node, 1));
    Arguments arguments;
    const size_t num_positional = values.size() - node.names.size();
    for (size_t i = 0; i < values.size(); ++i) {
      if (i < num_positional) {
        arguments.positional.push_back(std::move(values[i]));
      } else {
        arguments.named.emplace_back(node.names[i - num_positional], std::move(values[i]));
      }
    }
    return arguments;
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateDict(const Node& node) {
    Dict dict;
    for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
      PAGODA_ASSIGN_OR_RETURN(Value key, Evaluate(*node.children[i]));
      PAGODA_ASSIGN_OR_RETURN(Value value, Evaluate(*node.children[i + 1]));
      dict.Set(key.ToText().text, std::move(value));
    }
    return Value::DictOf(std::move(dict));
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateSubscript(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value object, Evaluate(*node.children[0]));
    PAGODA_ASSIGN_OR_RETURN(Value index, Evaluate(*node.children[1]));
    if (object.is_undefined()) return UndefinedError(object);
    if (index.is_int() && (object.is_list() || object.is_string())) {
      PAGODA_ASSIGN_OR_RETURN(List items, Elements(object, &budget_));
      const int64_t size = static_cast<int64_t>(items.size());
      const int64_t at = index.as_int() < 0 ? index.as_int() + size : index.as_int();
      if (at < 0 || at >= size)
        return Value::UndefinedNamed(absl::StrCat("index ", index.as_int()));
      return items[static_cast<size_t>(at)];
    }
    return Attribute(object, index.ToText().text);
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateSlice(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value object, Evaluate(*node.children[0]));
    if (object.is_undefined()) return UndefinedError(object);
    Value bounds[3] = {Value::NoneValue(), Value::NoneValue(), Value::NoneValue()};
    for (size_t i = 0; i < 3; ++i) {
      if (node.children[i + 1] == nullptr) continue;
      PAGODA_ASSIGN_OR_RETURN(bounds[i], Evaluate(*node.children[i + 1]));
    }
    return Slice(object, bounds[0], bounds[1], bounds[2], &budget_);
  }

  ABSL_ATTRIBUTE_NOINLINE Result EvaluateBinary(const Node& node) {
    PAGODA_ASSIGN_OR_RETURN(Value left, Evaluate(*node.children[0]));
    if (node.name == "and" && !left.Truthy()) return left;
    if (node.name == "or" && left.Truthy()) return left;
    if (node.name == "and" || node.name == "or") return Evaluate(*node.children[1]);
    if (node.name != "compare") {
      PAGODA_ASSIGN_OR_RETURN(Value right, Evaluate(*node.children[1]));
      return BinaryOperator(node.name, left, right, &budget_);
    }
    for (size_t i = 0; i < node.names.size(); ++i) {
      PAGODA_ASSIGN_OR_RETURN(Value right, Evaluate(*node.children[i + 1]));
      PAGODA_ASSIGN_OR_RETURN(bool holds, ComparisonOperator(node.names[i], left, right, &budget_));
      if (!holds) return Value::Bool(false);
      left = std::move(right);
    }
    return Value::Bool(true);
  }

  // ---- Calls.
  ABSL_ATTRIBUTE_NOINLINE Result EvaluateCall(const Node& node) {
    const Node& callee = *node.children[0];
    PAGODA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(node));
    if (callee.kind == NodeKind::kAttribute) {
      PAGODA_ASSIGN_OR_RETURN(Value object, Evaluate(*callee.children[0]));
      if (callee.name == "cycle" && object.is_dict() &&
          object.as_dict().Find("index0") != nullptr && !arguments.positional.empty()) {
        const auto index = static_cast<size_t>(object.as_dict().Find("index0")->as_int());
        return arguments.positional[index % arguments.positional.size()];
      }
      const Value attribute = object.is_dict() ? Attribute(object, callee.name) : Value();
      if (attribute.is_macro()) return CallMacro(*attribute.as_macro().node, arguments);
      return CallMethod(object, callee.name, arguments, &budget_);
    }
    PAGODA_ASSIGN_OR_RETURN(Value function, Evaluate(callee));
    if (function.is_macro()) return CallMacro(*function.as_macro().node, arguments);
    if (callee.kind == NodeKind::kName && function.is_undefined())
      return CallGlobal(callee.name, arguments);
    return TemplateError(absl::StrCat("'", function.TypeName(), "' object is not callable"));
  }

  Result CallGlobal(const std::string& name, const Arguments& arguments) {
    if (name == "raise_exception") {
      const Value* message = arguments.Get(0, "message");
      return TemplateError(message != nullptr ? message->ToText().text : "");
    }
    if (name == "namespace" || name == "dict") {
      Dict dict;
      if (!arguments.positional.empty() && arguments.positional[0].is_dict())
        dict = arguments.positional[0].as_dict();
      for (const auto& [key, value] : arguments.named) dict.Set(key, value);
      Value made = Value::DictOf(std::move(dict));
      if (name == "dict") return made;
      if (made.extent().has_namespace) return NestedNamespace();
      return Value::NamespaceOf(made.as_dict());
    }
    if (name == "range") return Range(arguments, &budget_);
    if (name == "strftime_now") return StrftimeNow(arguments);
    return TemplateError(absl::StrCat("'", name, "' is undefined"));
  }

  Result StrftimeNow(const Arguments& arguments) const {
    const Value* format = arguments.Get(0, "format");
    if (format == nullptr || !format->is_string())
      return TemplateError("strftime_now needs a format");
    const time_t now = static_cast<time_t>(limits_.now_seconds);
    tm parts{};
    gmtime_r(&now, &parts);
    char buffer[256];
    const size_t n = strftime(buffer, sizeof(buffer), format->as_string().text.c_str(), &parts);
    return Value::Trusted(std::string(buffer, n));
  }

  Result CallMacro(const Node& macro, const Arguments& arguments) {
    if (++macro_depth_ > limits_.max_depth) {
      --macro_depth_;
      return TemplateError(absl::StrCat("macros call each other deeper than ", limits_.max_depth));
    }
    Dict scope;
    absl::Status status = BindParameters(macro, arguments, &scope);
    const size_t outer_floor = std::exchange(scope_floor_, scopes_.size());
    MarkedString outer = std::exchange(output_, {});
    scopes_.push_back(std::move(scope));
    if (status.ok()) status = Execute(*macro.children[0]).status();
    scopes_.pop_back();
    scope_floor_ = outer_floor;
    MarkedString text = std::exchange(output_, std::move(outer));
    --macro_depth_;
    PAGODA_RETURN_IF_ERROR(status);
    return Value::String(std::move(text));
  }

  absl::Status BindParameters(const Node& macro, const Arguments& arguments, Dict* scope) {
    const size_t num_parameters = macro.names.size();
    const size_t num_defaults = macro.children.size() - 1;
    if (arguments.positional.size() > num_parameters) {
      return TemplateError(absl::StrCat(
          "macro '", macro.name, "' takes not more than ", num_parameters, " arguments"));
    }
    for (size_t i = 0; i < num_parameters; ++i) {
      const Value* given = arguments.Get(i, macro.names[i]);
      if (given != nullptr) {
        scope->Set(macro.names[i], *given);
      } else if (i + num_defaults >= num_parameters) {
        PAGODA_ASSIGN_OR_RETURN(Value value,
                                Evaluate(*macro.children[1 + i + num_defaults - num_parameters]));
        scope->Set(macro.names[i], std::move(value));
      } else {
        scope->Set(macro.names[i], Value::UndefinedNamed(macro.names[i]));
      }
    }
    return absl::OkStatus();
  }

  const RenderLimits& limits_;
  Budget budget_;
  std::vector<Dict> scopes_;
  size_t scope_floor_ = 0;  // scopes below it belong to the callers of the running macro
  MarkedString output_;
  int macro_depth_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<MarkedString> Render(const Node& root,
                                    const Dict& globals,
                                    const RenderLimits& limits) {
  return Interpreter(globals, limits).Run(root);
}

}  // namespace pagoda::engine::jinja
