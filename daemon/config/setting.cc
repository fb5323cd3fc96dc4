#include "daemon/config/setting.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "daemon/config/setting_value.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/reflection.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using internal::v1::ServerConfig;

// A field of a message inside ServerConfig.
template <typename MessageType>
struct FieldRef {
  MessageType* message;
  const FieldDescriptor* field;
};

const FieldDescriptor* FieldOf(const Message& message, absl::string_view name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(std::string(name));
  PAGODA_CHECK(field != nullptr);
  return field;
}

FieldRef<Message> MutableField(const Setting& setting, ServerConfig* config) {
  Message* message = config;
  std::vector<absl::string_view> path = absl::StrSplit(setting.field, '.');
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    message = message->GetReflection()->MutableMessage(message, FieldOf(*message, path[i]));
  }
  return {message, FieldOf(*message, path.back())};
}

FieldRef<const Message> ConstField(const Setting& setting, const ServerConfig& config) {
  const Message* message = &config;
  std::vector<absl::string_view> path = absl::StrSplit(setting.field, '.');
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    message = &message->GetReflection()->GetMessage(*message, FieldOf(*message, path[i]));
  }
  return {message, FieldOf(*message, path.back())};
}

// "LOAD_FORMAT_" for LoadFormat: what its zero value begins with.
std::string EnumPrefix(const EnumDescriptor& type) {
  std::string name = type.FindValueByNumber(0)->name();
  return name.substr(0, name.size() - absl::string_view("UNSPECIFIED").size());
}

void StoreInteger(const FieldRef<Message>& ref, uint64_t value) {
  const auto* reflection = ref.message->GetReflection();
  if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    reflection->SetUInt32(ref.message, ref.field, static_cast<uint32_t>(value));
  } else {
    reflection->SetUInt64(ref.message, ref.field, value);
  }
}

uint64_t LoadInteger(const FieldRef<const Message>& ref) {
  const auto* reflection = ref.message->GetReflection();
  return ref.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32
             ? reflection->GetUInt32(*ref.message, ref.field)
             : reflection->GetUInt64(*ref.message, ref.field);
}

std::string FormatBound(const Setting& setting, double bound) {
  const auto whole = static_cast<uint64_t>(bound);
  if (setting.kind == SettingKind::kReal) return FormatReal(bound);
  if (setting.kind == SettingKind::kBytes) return FormatByteCount(whole);
  if (setting.kind == SettingKind::kSeconds) return FormatMilliseconds(whole);
  return absl::StrCat(whole);
}

absl::Status CheckBounds(const Setting& setting, double value) {
  if (value >= setting.min && value <= setting.max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "expected ", FormatBound(setting, setting.min), " to ", FormatBound(setting, setting.max)));
}

absl::Status StoreChoice(const Setting& setting,
                         absl::string_view text,
                         const FieldRef<Message>& ref) {
  const std::vector<absl::string_view> choices = absl::StrSplit(setting.choices, '|');
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected one of ", absl::StrJoin(choices, ", ")));
  }
  const auto* reflection = ref.message->GetReflection();
  if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    const EnumDescriptor& type = *ref.field->enum_type();
    const EnumValueDescriptor* value =
        type.FindValueByName(absl::StrCat(EnumPrefix(type), absl::AsciiStrToUpper(text)));
    PAGODA_CHECK(value != nullptr);
    reflection->SetEnum(ref.message, ref.field, value);
  } else {
    reflection->SetString(ref.message, ref.field, std::string(text));
  }
  return absl::OkStatus();
}

absl::Status StoreNumber(const Setting& setting,
                         const absl::StatusOr<uint64_t>& value,
                         const FieldRef<Message>& ref) {
  if (!value.ok()) return value.status();
  PAGODA_RETURN_IF_ERROR(CheckBounds(setting, static_cast<double>(*value)));
  StoreInteger(ref, *value);
  return absl::OkStatus();
}

absl::Status StoreReal(const Setting& setting,
                       absl::string_view text,
                       const FieldRef<Message>& ref) {
  PAGODA_ASSIGN_OR_RETURN(const double value, ParseReal(text));
  PAGODA_RETURN_IF_ERROR(CheckBounds(setting, value));
  ref.message->GetReflection()->SetDouble(ref.message, ref.field, value);
  return absl::OkStatus();
}

absl::Status AddNumber(const Setting& setting,
                       absl::string_view text,
                       const FieldRef<Message>& ref) {
  PAGODA_ASSIGN_OR_RETURN(const uint64_t value, ParseCount(text));
  PAGODA_RETURN_IF_ERROR(CheckBounds(setting, static_cast<double>(value)));
  ref.message->GetReflection()->AddUInt32(ref.message, ref.field, static_cast<uint32_t>(value));
  return absl::OkStatus();
}

absl::Status StoreList(const Setting& setting,
                       absl::string_view text,
                       const FieldRef<Message>& ref) {
  const auto* reflection = ref.message->GetReflection();
  const bool has_numbers = ref.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32;
  reflection->ClearField(ref.message, ref.field);
  if (text.empty()) return absl::OkStatus();
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const absl::string_view trimmed = absl::StripAsciiWhitespace(item);
    if (trimmed.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("expected ",
                                                     has_numbers ? "numbers" : "names",
                                                     " separated by commas, none of them empty"));
    }
    if (has_numbers) {
      PAGODA_RETURN_IF_ERROR(AddNumber(setting, trimmed, ref));
    } else {
      reflection->AddString(ref.message, ref.field, std::string(trimmed));
    }
  }
  return absl::OkStatus();
}

// The path of a kSecretFile is not in the configuration, its bytes are.
absl::Status StoreSecret(const Setting& setting,
                         absl::string_view path,
                         const FieldRef<Message>& ref) {
  std::ifstream file(std::string(path), std::ios::binary);
  std::ostringstream bytes;
  if (!file.is_open() || !(bytes << file.rdbuf())) {
    return absl::InvalidArgumentError("expected a file that can be read");
  }
  std::string secret = std::move(bytes).str();
  if (secret.size() < setting.min || secret.size() > setting.max) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "expected a file of %g to %g bytes, it has %d", setting.min, setting.max, secret.size()));
  }
  ref.message->GetReflection()->SetString(ref.message, ref.field, std::move(secret));
  return absl::OkStatus();
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substitution = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substitution});
    }
  }
  return row.back();
}

}  // namespace

const Setting* FindSetting(absl::string_view name) {
  const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
  for (const Setting& setting : Settings()) {
    if (dashed == setting.name) return &setting;
  }
  return nullptr;
}

std::string ClosestSettingName(absl::string_view name) {
  const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
  std::string closest;
  // A third of the letters may differ.
  size_t best = dashed.size() / 3 + 1;
  for (const Setting& setting : Settings()) {
    const size_t distance = EditDistance(dashed, setting.name);
    if (distance >= best) continue;
    best = distance;
    closest = setting.name;
  }
  return closest;
}

std::string EnvironmentName(const Setting& setting) {
  return absl::StrCat("PAGODA_",
                      absl::StrReplaceAll(absl::AsciiStrToUpper(setting.name), {{"-", "_"}}));
}

absl::Status StoreSetting(const Setting& setting, absl::string_view text, ServerConfig* config) {
  const FieldRef<Message> ref = MutableField(setting, config);
  switch (setting.kind) {
    case SettingKind::kText:
      ref.message->GetReflection()->SetString(ref.message, ref.field, std::string(text));
      return absl::OkStatus();
    case SettingKind::kList:
      return StoreList(setting, text, ref);
    case SettingKind::kChoice:
      return StoreChoice(setting, text, ref);
    case SettingKind::kSwitch: {
      PAGODA_ASSIGN_OR_RETURN(const bool value, ParseSwitch(text));
      ref.message->GetReflection()->SetBool(ref.message, ref.field, value);
      return absl::OkStatus();
    }
    case SettingKind::kCount:
      return StoreNumber(setting, ParseCount(text), ref);
    case SettingKind::kBytes:
      return StoreNumber(setting, ParseBytes(text), ref);
    case SettingKind::kSeconds:
      return StoreNumber(setting, ParseMilliseconds(text), ref);
    case SettingKind::kReal:
      return StoreReal(setting, text, ref);
    case SettingKind::kSecretFile:
      return StoreSecret(setting, text, ref);
  }
  return absl::InternalError("unknown kind of setting");
}

std::string FormatSetting(const Setting& setting, const ServerConfig& config) {
  const FieldRef<const Message> ref = ConstField(setting, config);
  const auto* reflection = ref.message->GetReflection();
  switch (setting.kind) {
    case SettingKind::kText:
      return reflection->GetString(*ref.message, ref.field);
    case SettingKind::kList: {
      if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
        const auto numbers = reflection->GetRepeatedFieldRef<uint32_t>(*ref.message, ref.field);
        return absl::StrJoin(numbers.begin(), numbers.end(), ",");
      }
      const auto items = reflection->GetRepeatedFieldRef<std::string>(*ref.message, ref.field);
      return absl::StrJoin(items.begin(), items.end(), ",");
    }
    case SettingKind::kChoice:
      if (ref.field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) {
        return reflection->GetString(*ref.message, ref.field);
      }
      return absl::AsciiStrToLower(reflection->GetEnum(*ref.message, ref.field)
                                       ->name()
                                       .substr(EnumPrefix(*ref.field->enum_type()).size()));
    case SettingKind::kSwitch:
      return reflection->GetBool(*ref.message, ref.field) ? "true" : "false";
    case SettingKind::kCount:
      // Absent is not zero.
      if (ref.field->has_optional_keyword() && !reflection->HasField(*ref.message, ref.field)) {
        return "";
      }
      return absl::StrCat(LoadInteger(ref));
    case SettingKind::kBytes:
      return FormatByteCount(LoadInteger(ref));
    case SettingKind::kSeconds:
      return FormatMilliseconds(LoadInteger(ref));
    case SettingKind::kReal:
      return FormatReal(reflection->GetDouble(*ref.message, ref.field));
    case SettingKind::kSecretFile:
      break;
  }
  return "";
}

}  // namespace pagoda::daemon
