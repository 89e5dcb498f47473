// What a user of the installed package writes first.
#include <tilegrad/tilegrad.h>

#include <iostream>

int main() { std::cout << tg::name_of(tg::bf16) << '\n'; }
