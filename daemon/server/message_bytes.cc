#include "daemon/server/message_bytes.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/server/gzip.h"
#include "daemon/server/request_fields.h"
#include "daemon/server/rpc_error.h"
#include "engine/text/utf8.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::DescriptorProto;
using google::protobuf::DynamicMessageFactory;
using google::protobuf::FieldDescriptor;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::Message;

void StringsToBytes(DescriptorProto* type) {
  for (FieldDescriptorProto& field : *type->mutable_field()) {
    if (field.type() == FieldDescriptorProto::TYPE_STRING)
      field.set_type(FieldDescriptorProto::TYPE_BYTES);
  }
  for (DescriptorProto& nested : *type->mutable_nested_type()) StringsToBytes(&nested);
}

// Adds `file` and what it imports to `pool`, with every string field turned into bytes, which may
// hold anything.
void AddWithBytes(const FileDescriptor& file, DescriptorPool* pool) {
  if (pool->FindFileByName(file.name()) != nullptr) return;
  for (int i = 0; i < file.dependency_count(); ++i) AddWithBytes(*file.dependency(i), pool);
  FileDescriptorProto proto;
  file.CopyTo(&proto);
  for (DescriptorProto& type : *proto.mutable_message_type()) StringsToBytes(&type);
  pool->BuildFile(proto);
}

std::string FindInField(const Message& lenient,
                        const FieldDescriptor& field,
                        const FieldDescriptor* original);

// `original` is the message type as declared; `lenient` has bytes for strings.
std::string FindInMessage(const Message& lenient, const Descriptor& original) {
  std::vector<const FieldDescriptor*> fields;
  lenient.GetReflection()->ListFields(lenient, &fields);
  for (const FieldDescriptor* field : fields) {
    std::string path = FindInField(lenient, *field, original.FindFieldByNumber(field->number()));
    if (!path.empty()) return path;
  }
  return "";
}

// The path of the value itself, or of what is wrong inside it.
std::string CheckValue(const Message& lenient,
                       const FieldDescriptor& field,
                       const FieldDescriptor& original,
                       int index) {
  const auto* reflection = lenient.GetReflection();
  const std::string name = index < 0 ? field.name() : absl::StrCat(field.name(), "[", index, "]");
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const Message& inner = index < 0 ? reflection->GetMessage(lenient, &field)
                                     : reflection->GetRepeatedMessage(lenient, &field, index);
    const std::string path = FindInMessage(inner, *original.message_type());
    return path.empty() ? "" : absl::StrCat(name, ".", path);
  }
  if (original.type() != FieldDescriptor::TYPE_STRING) return "";
  const std::string value = index < 0 ? reflection->GetString(lenient, &field)
                                      : reflection->GetRepeatedString(lenient, &field, index);
  return engine::IsValidUtf8(value) ? "" : name;
}

std::string FindInField(const Message& lenient,
                        const FieldDescriptor& field,
                        const FieldDescriptor* original) {
  if (original == nullptr) return "";
  if (!field.is_repeated()) return CheckValue(lenient, field, *original, -1);
  const int size = lenient.GetReflection()->FieldSize(lenient, &field);
  for (int i = 0; i < size; ++i) {
    std::string path = CheckValue(lenient, field, *original, i);
    if (!path.empty()) return path;
  }
  return "";
}

std::string Flatten(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!bytes.Dump(&slices).ok()) return flat;
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return flat;
}

}  // namespace

std::string FindInvalidUtf8(absl::string_view bytes, const Descriptor& type) {
  DescriptorPool pool;
  AddWithBytes(*type.file(), &pool);
  const Descriptor* lenient_type = pool.FindMessageTypeByName(type.full_name());
  if (lenient_type == nullptr) return "";
  DynamicMessageFactory factory(&pool);
  const std::unique_ptr<Message> lenient(factory.GetPrototype(lenient_type)->New());
  if (!lenient->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return "";
  return FindInMessage(*lenient, type);
}

grpc::ByteBuffer SerializeReply(const Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  // A slice's bytes are writable until it is shared.
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, size_t max_bytes, Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  if (!bytes.Valid()) return MalformedMessageError(type.full_name());
  grpc::ByteBuffer plain(bytes);  // shares the slices
  if (IsGzip(bytes)) {
    PAGODA_ASSIGN_OR_RETURN(const std::string inflated, InflateGzip(bytes, max_bytes));
    const grpc::Slice slice(inflated);
    plain = grpc::ByteBuffer(&slice, 1);
  }
  {
    grpc::ProtoBufferReader reader(&plain);
    if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  }
  const std::string path = FindInvalidUtf8(Flatten(plain), type);
  if (path.empty()) return MalformedMessageError(type.full_name());
  FieldChecker checker;
  checker.Fail(path, "is not valid UTF-8");
  return checker.ToStatus();
}

}  // namespace pagoda::daemon
