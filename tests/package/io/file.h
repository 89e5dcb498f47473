#pragma once

struct File {
  int lines = 0;
};
