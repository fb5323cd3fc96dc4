#include "tests/e2e/bad_messages.h"

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"

namespace pagoda::e2e {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// More than any list of a request may have.
constexpr int kManyItems = 3000;
// Messages of the API are nested less deep.
constexpr int kMostLevels = 6;

template <typename Int>
std::vector<Int> ExtremeInts() {
  return {0, 1, std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max(), Int(-1)};
}

template <typename Float>
std::vector<Float> ExtremeFloats() {
  using Limits = std::numeric_limits<Float>;
  return {0,
          -1,
          Limits::quiet_NaN(),
          Limits::infinity(),
          -Limits::infinity(),
          Limits::max(),
          Limits::lowest(),
          Limits::denorm_min()};
}

std::vector<std::string> ExtremeTexts() {
  std::string deep(2000, '[');
  std::string quotes = "\"\\\n{\"a\":";
  return {"",
          "x",
          std::string(1, '\0'),
          std::string(300, 'x'),
          std::string(200'000, 'y'),
          deep,
          quotes,
          "(((((a*)*)*)*)*",
          "null",
          "{\"type\":\"thing\"}",
          "\xef\xbf\xbf\xf4\x8f\xbf\xbf"};
}

template <typename Number>
std::string Describe(Number value) {
  return absl::StrCat(value);
}
std::string Describe(const std::string& text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, 20)), "\" of ", text.size(), " bytes");
}

class Maker {
 public:
  explicit Maker(const Message& good) : message_(good.New()) { message_->CopyFrom(good); }

  std::vector<BadMessage> Make() {
    Visit(message_.get(), "", 0);
    return std::move(made_);
  }

 private:
  void Visit(Message* message, const std::string& prefix, int level) {
    if (level == kMostLevels) return;
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* const field = message->GetDescriptor()->field(i);
      const std::string path = absl::StrCat(prefix, field->name());
      Clear(message, field, path);
      if (field->is_map()) {
        AddEntries(message, field, path);
      } else if (field->is_repeated()) {
        AddItems(message, field, path, level);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Nest(message, field, path, level);
      } else {
        SetScalars(message, field, path);
      }
      Mistype(message, field, path);
    }
  }

  // Emits the message as `change` makes it, and restores it.
  template <typename Change>
  void Try(Message* message,
           const std::string& path,
           const std::string& what,
           Change change,
           bool is_malformed = false) {
    const std::unique_ptr<Message> before(message->New());
    before->CopyFrom(*message);
    change(message->GetReflection());
    // Of invalid UTF-8 the library only complains.
    made_.push_back({path, what, added_, message_->SerializeAsString(), is_malformed});
    message->CopyFrom(*before);
  }

  void Clear(Message* message, const FieldDescriptor* field, const std::string& path) {
    Try(message, path, "missing", [&](const Reflection* r) { r->ClearField(message, field); });
  }

  void Nest(Message* message, const FieldDescriptor* field, const std::string& path, int level) {
    Try(message, path, "empty", [&](const Reflection* r) {
      r->MutableMessage(message, field)->Clear();
    });
    const std::unique_ptr<Message> before(message->New());
    before->CopyFrom(*message);
    const std::string added = added_;
    if (added_.empty() && !message->GetReflection()->HasField(*message, field)) added_ = path;
    Visit(message->GetReflection()->MutableMessage(message, field), path + ".", level + 1);
    added_ = added;
    message->CopyFrom(*before);
  }

  // Calls `each` with what a value is and a setter of (reflection, message, whether to add it to a
  // list), for each extreme value of the field's type.
  template <typename Each>
  static void ForExtremes(const FieldDescriptor* field, Each each) {
    const auto offer = [&](const auto& values, auto set, auto add) {
      for (const auto& value : values) {
        each(Describe(value), [&](const Reflection* r, Message* message, bool adds) {
          adds ? (r->*add)(message, field, value) : (r->*set)(message, field, value);
        });
      }
    };
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return offer(ExtremeInts<int32_t>(), &Reflection::SetInt32, &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return offer(ExtremeInts<int64_t>(), &Reflection::SetInt64, &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return offer(ExtremeInts<uint32_t>(), &Reflection::SetUInt32, &Reflection::AddUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return offer(ExtremeInts<uint64_t>(), &Reflection::SetUInt64, &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return offer(ExtremeFloats<float>(), &Reflection::SetFloat, &Reflection::AddFloat);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return offer(ExtremeFloats<double>(), &Reflection::SetDouble, &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_STRING:
        return offer(ExtremeTexts(), &Reflection::SetString, &Reflection::AddString);
      case FieldDescriptor::CPPTYPE_BOOL:
        return offer(std::vector<int>{0, 1}, &Reflection::SetBool, &Reflection::AddBool);
      case FieldDescriptor::CPPTYPE_ENUM:
        return offer(
            std::vector<int>{0, 1, 99, -1}, &Reflection::SetEnumValue, &Reflection::AddEnumValue);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return;
    }
  }

  void SetScalars(Message* message, const FieldDescriptor* field, const std::string& path) {
    ForExtremes(field, [&](const std::string& what, const auto& set) {
      Try(message, path, what, [&](const Reflection* r) { set(r, message, /*adds=*/false); });
    });
    if (field->type() != FieldDescriptor::TYPE_STRING) return;
    Try(
        message,
        path,
        "no UTF-8",
        [&](const Reflection* r) { r->SetString(message, field, "\xff\xfe"); },
        /*is_malformed=*/true);
  }

  void AddItems(Message* message,
                const FieldDescriptor* field,
                const std::string& path,
                int level) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (const int count : {1, kManyItems}) {
        Try(message, path, absl::StrCat(count, " empty"), [&](const Reflection* r) {
          for (int i = 0; i < count; ++i) r->AddMessage(message, field);
        });
      }
      const Reflection* const r = message->GetReflection();
      const std::unique_ptr<Message> before(message->New());
      before->CopyFrom(*message);
      const std::string added = added_;
      if (r->FieldSize(*message, field) == 0) {
        r->AddMessage(message, field);
        if (added_.empty()) added_ = path;
      }
      Visit(r->MutableRepeatedMessage(message, field, 0), path + "[0].", level + 1);
      added_ = added;
      message->CopyFrom(*before);
      return;
    }
    ForExtremes(field, [&](const std::string& what, const auto& add) {
      Try(message, path, absl::StrCat("[", what, "]"), [&](const Reflection* r) {
        r->ClearField(message, field);
        add(r, message, /*adds=*/true);
      });
    });
    int num_values = 0;
    ForExtremes(field, [&](const std::string& what, const auto& add) {
      // One tells what too many are answered; more of them are only slow.
      if (++num_values != 2) return;
      Try(message, path, absl::StrCat(kManyItems, " of ", what), [&](const Reflection* r) {
        for (int i = 0; i < kManyItems; ++i) add(r, message, /*adds=*/true);
      });
    });
  }

  void AddEntries(Message* message, const FieldDescriptor* field, const std::string& path) {
    const FieldDescriptor* const key = field->message_type()->map_key();
    const FieldDescriptor* const value = field->message_type()->map_value();
    ForExtremes(key, [&](const std::string& what, const auto& set_key) {
      Try(message, path, absl::StrCat("{", what, ": 0}"), [&](const Reflection* r) {
        Message* const entry = r->AddMessage(message, field);
        set_key(entry->GetReflection(), entry, /*adds=*/false);
      });
    });
    ForExtremes(value, [&](const std::string& what, const auto& set_value) {
      Try(message, path, absl::StrCat("{0: ", what, "}"), [&](const Reflection* r) {
        Message* const entry = r->AddMessage(message, field);
        set_value(entry->GetReflection(), entry, /*adds=*/false);
      });
    });
  }

  void Mistype(Message* message, const FieldDescriptor* field, const std::string& path) {
    const int number = field->number();
    const auto try_wire = [&](const char* what, auto add) {
      Try(
          message,
          path,
          absl::StrCat("on the wire ", what),
          [&](const Reflection* r) {
            r->ClearField(message, field);
            add(r->MutableUnknownFields(message));
          },
          /*is_malformed=*/true);
    };
    try_wire("a varint", [number](auto* fields) { fields->AddVarint(number, ~uint64_t{0}); });
    try_wire("32 bits", [number](auto* fields) { fields->AddFixed32(number, 0x7fc00000); });
    try_wire("64 bits", [number](auto* fields) { fields->AddFixed64(number, ~uint64_t{0}); });
    try_wire("bytes",
             [number](auto* fields) { fields->AddLengthDelimited(number, "\xff\xff\x01"); });
    try_wire("a group", [number](auto* fields) { fields->AddGroup(number)->AddVarint(1, 1); });
  }

  const std::unique_ptr<Message> message_;
  std::string added_;
  std::vector<BadMessage> made_;
};

}  // namespace

std::vector<BadMessage> BadMessages(const Message& good) { return Maker(good).Make(); }

}  // namespace pagoda::e2e
