// GE's string type: C++ values that cross the library boundary must be real, or their destructors crash.
// GE itself is absent; torchair builds its graphs in Python and needs only to find the engine "initialised".
#include <cstring>
#include <memory>
#include <string>

namespace ge {

class AscendString {
public:
  AscendString(const char *text);
  const char *GetString() const;
  bool operator<(const AscendString &other) const;
  bool operator==(const AscendString &other) const;

private:
  std::shared_ptr<std::string> text_; // the one data member of CANN's class
};

AscendString::AscendString(const char *text) {
  if (text != nullptr) {
    text_ = std::make_shared<std::string>(text);
  }
}

const char *AscendString::GetString() const { return text_ ? text_->c_str() : ""; }

bool AscendString::operator<(const AscendString &other) const { return strcmp(GetString(), other.GetString()) < 0; }

bool AscendString::operator==(const AscendString &other) const { return strcmp(GetString(), other.GetString()) == 0; }

AscendString GEGetWarningMsgV2() { return AscendString(""); }

} // namespace ge
