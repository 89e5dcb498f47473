"""Prints tensors and arrays in gdb as their text() does. The printers call no function of the program, so they also work for core files.

To load it, in gdb or in ~/.gdbinit:  source tools/gdb_printers.py

  Tensor   f32 [2, 3], value 7 of its graph
  Array    f32 [2, 2] {1, 2, 3, 4}
  Shape    [2, 3]
"""
import struct

import gdb
import gdb.printing

MOST = 16  # maximum number of elements printed
# dtype: bytes per element, and the struct format; bf16 is the upper half of an f32
DTYPES = {"f64": (8, "d"), "f32": (4, "f"), "bf16": (2, None), "f16": (2, "e"), "i64": (8, "q"), "i32": (4, "i"),
          "u8": (1, "B"), "boolean": (1, "?")}


def dtype_of(value):
    return str(value).split("::")[-1]


def dims_of(value):
    return [int(value["v_"][i]) for i in range(int(value["size_"]))]


def elements(address, dtype, count):
    size, form = DTYPES[dtype]
    memory = bytes(gdb.selected_inferior().read_memory(address, size * count))
    if form is None:
        memory = b"".join(b"\0\0" + memory[i:i + 2] for i in range(0, len(memory), 2))
        form = "f"
    return struct.unpack(f"<{count}{form}", memory)


def text_of(x):
    return "true" if x is True else "false" if x is False else f"{x:g}" if isinstance(x, float) else str(x)


class DimsPrinter:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        return str(dims_of(self.value))


class ArrayPrinter:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        dtype, shape, count = dtype_of(self.value["dtype_"]), dims_of(self.value["shape_"]), int(self.value["numel_"])
        values = ""
        if count <= MOST:
            data = self.value["data_"]["_M_ptr"]
            values = " {" + ", ".join(map(text_of, elements(int(data), dtype, count) if count else [])) + "}"
        return f"{dtype} {shape}{values}"


def deque_at(deque, number):
    """Element `number` of a libstdc++ std::deque. Its blocks have 512 bytes, or the size of one element if
    that is larger."""
    start = deque["_M_impl"]["_M_start"]
    each = max(1, 512 // start["_M_cur"].dereference().type.sizeof)
    at = number + int(start["_M_cur"] - start["_M_first"])
    return start["_M_node"][at // each][at % each]


class TensorPrinter:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        graph, number = self.value["graph_"], int(self.value["id_"])
        if int(graph) == 0:
            return "undefined"
        try:
            value = deque_at(graph["state_"]["values"], number)
        except gdb.error:  # the library was compiled without debug information
            return f"value {number} of a graph"
        return f"{dtype_of(value['dtype'])} {dims_of(value['layout']['shape'])}, value {number} of its graph"


def printers():
    all_printers = gdb.printing.RegexpCollectionPrettyPrinter("tilegrad")
    all_printers.add_printer("Dims", "^tg::Dims$", DimsPrinter)
    all_printers.add_printer("Array", "^tg::Array$", ArrayPrinter)
    all_printers.add_printer("Tensor", "^tg::Tensor$", TensorPrinter)
    return all_printers


gdb.printing.register_pretty_printer(gdb.current_objfile(), printers(), replace=True)
