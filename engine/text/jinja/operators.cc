#include "engine/text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/predicates.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

using Result = absl::StatusOr<Value>;

absl::Status Overflow() { return TemplateError("an integer leaves 64 bits"); }

absl::Status Unsupported(absl::string_view op, const Value& left, const Value& right) {
  return TemplateError(absl::StrCat("unsupported operand types for ",
                                    op,
                                    ": '",
                                    left.TypeName(),
                                    "' and '",
                                    right.TypeName(),
                                    "'"));
}

int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

Result IntegerOperator(absl::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &out) ? Result(Overflow()) : Value::Int(out);
  if (op == "-") return __builtin_sub_overflow(a, b, &out) ? Result(Overflow()) : Value::Int(out);
  if (op == "*") return __builtin_mul_overflow(a, b, &out) ? Result(Overflow()) : Value::Int(out);
  if (op == "**") {
    const double power = std::pow(static_cast<double>(a), static_cast<double>(b));
    if (b < 0) return Value::Float(power);
    // Exact below 2^53; beyond that a template has no business.
    if (std::fabs(power) > 0x1p53) return Overflow();
    return Value::Int(static_cast<int64_t>(power));
  }
  if (b == 0) return TemplateError("division by zero");
  if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "//" ? IntegerOperator("-", 0, a) : Result(Value::Int(0));
  if (op == "//") return Value::Int(FloorDivide(a, b));
  return Value::Int(a - FloorDivide(a, b) * b);
}

Result FloatOperator(absl::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return TemplateError("division by zero");
  if (op == "/") return Value::Float(a / b);
  if (op == "//") return Value::Float(std::floor(a / b));
  return Value::Float(a - std::floor(a / b) * b);
}

// Text or list times a count.
Result Repeat(const Value& object, int64_t count, Budget* budget) {
  count = std::max<int64_t>(count, 0);
  const int64_t size = static_cast<int64_t>(object.is_string() ? object.as_string().text.size()
                                                               : object.as_list().size());
  int64_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) return Overflow();
  PAGODA_RETURN_IF_ERROR(budget->Spend(total / (object.is_string() ? 16 : 1) + 1));
  if (size == 0) return object;
  if (object.is_string()) {
    MarkedString out;
    for (int64_t i = 0; i < count; ++i) out.Append(object.as_string());
    return Value::String(std::move(out));
  }
  List out;
  for (int64_t i = 0; i < count; ++i)
    out.insert(out.end(), object.as_list().begin(), object.as_list().end());
  return Value::ListOf(std::move(out));
}

Result Concatenate(const MarkedString& left, const MarkedString& right, Budget* budget) {
  PAGODA_RETURN_IF_ERROR(budget->SpendBytes(left.text.size() + right.text.size()));
  MarkedString out = left;
  out.Append(right);
  return Value::String(std::move(out));
}

}  // namespace

Result UnaryOperator(absl::string_view op, const Value& operand) {
  if (!operand.is_number()) {
    return TemplateError(
        absl::StrCat("bad operand type for unary ", op, ": '", operand.TypeName(), "'"));
  }
  if (op == "+") return operand;
  if (operand.is_float()) return Value::Float(-operand.as_float());
  return IntegerOperator("-", 0, operand.as_int());
}

Result BinaryOperator(absl::string_view op, const Value& left, const Value& right, Budget* budget) {
  if (op == "~") return Concatenate(left.ToText(), right.ToText(), budget);
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float())
      return FloatOperator(op, left.as_float(), right.as_float());
    return IntegerOperator(op, left.as_int(), right.as_int());
  }
  if (op == "+" && left.is_string() && right.is_string()) {
    return Concatenate(left.as_string(), right.as_string(), budget);
  }
  if (op == "+" && left.is_list() && right.is_list()) {
    List out = left.as_list();
    out.insert(out.end(), right.as_list().begin(), right.as_list().end());
    PAGODA_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(out.size())));
    return Value::ListOf(std::move(out));
  }
  // As in Python, true counts as 1.
  const auto is_whole = [](const Value& value) { return value.is_number() && !value.is_float(); };
  if (op == "*" && (left.is_string() || left.is_list()) && is_whole(right))
    return Repeat(left, right.as_int(), budget);
  if (op == "*" && (right.is_string() || right.is_list()) && is_whole(left))
    return Repeat(right, left.as_int(), budget);
  for (const Value* operand : {&left, &right}) {
    if (operand->is_undefined())
      return TemplateError(absl::StrCat("'", operand->undefined_name(), "' is undefined"));
  }
  return Unsupported(op, left, right);
}

absl::StatusOr<bool> ComparisonOperator(absl::string_view op,
                                        const Value& left,
                                        const Value& right,
                                        Budget* budget) {
  if (op == "in") return Contains(right, left, budget);
  if (op == "not in") {
    PAGODA_ASSIGN_OR_RETURN(bool inside, Contains(right, left, budget));
    return !inside;
  }
  PAGODA_RETURN_IF_ERROR(budget->SpendEqual(left, right));
  if (op == "==") return Equal(left, right);
  if (op == "!=") return !Equal(left, right);
  PAGODA_ASSIGN_OR_RETURN(int order, Compare(left, right));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

Result Slice(
    const Value& object, const Value& begin, const Value& end, const Value& step, Budget* budget) {
  if (!object.is_string() && !object.is_list()) {
    return TemplateError(absl::StrCat("'", object.TypeName(), "' object cannot be sliced"));
  }
  for (const Value* part : {&begin, &end, &step}) {
    if (!part->is_none() && !part->is_int())
      return TemplateError("slice indices must be integers or none");
  }
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(object, budget));
  const int64_t size = static_cast<int64_t>(items.size());
  const int64_t stride = step.is_none() ? 1 : step.as_int();
  if (stride == 0) return TemplateError("slice step cannot be zero");
  // Python's clamping: below the first is -1 for a negative stride, else 0.
  const int64_t low = stride < 0 ? -1 : 0, high = stride < 0 ? size - 1 : size;
  auto clamp = [&](const Value& bound, int64_t fallback) {
    if (bound.is_none()) return fallback;
    const int64_t at = bound.as_int() < 0 ? bound.as_int() + size : bound.as_int();
    return std::clamp(at, low, high);
  };
  const int64_t first = clamp(begin, stride < 0 ? high : low),
                last = clamp(end, stride < 0 ? low : high);
  List out;
  for (int64_t i = first; stride > 0 ? i < last : i > last;) {
    out.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (object.is_list()) return Value::ListOf(std::move(out), object.is_tuple());
  MarkedString text;
  for (const Value& character : out) text.Append(character.as_string());
  return Value::String(std::move(text));
}

Result Range(const Arguments& arguments, Budget* budget) {
  const size_t n = arguments.positional.size();
  if (n < 1 || n > 3) return TemplateError("range needs one to three integers");
  for (const Value& bound : arguments.positional) {
    if (!bound.is_int()) return TemplateError("range needs integers");
  }
  const int64_t begin = n == 1 ? 0 : arguments.positional[0].as_int();
  const int64_t end = arguments.positional[n == 1 ? 0 : 1].as_int();
  const int64_t step = n == 3 ? arguments.positional[2].as_int() : 1;
  if (step == 0) return TemplateError("range step cannot be zero");
  List out;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    PAGODA_RETURN_IF_ERROR(budget->Spend(1));
    out.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::ListOf(std::move(out));
}

}  // namespace pagoda::engine::jinja
