#pragma once

#include "arrays.h"

void bind_splice(nb::module_& module);
