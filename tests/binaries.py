"""What stands in a shared library of any system: for libraries that cannot be loaded here."""

from __future__ import annotations

import struct
from typing import NamedTuple

ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
PE_MACHINES = {0x8664: "amd64"}
LOAD_DYLIB, SYMTAB, SEGMENT, CODE_SIGNATURE, BUILD_VERSION = 0xC, 0x2, 0x19, 0x1D, 0x32


class Binary(NamedTuple):
    """A shared library."""

    system: str  # as `sys.platform`
    machine: str
    exports: set[str]
    libraries: set[str]  # that it needs
    sections: dict[str, int]  # bytes
    versions: set[str]  # of glibc's functions that it needs, or of the oldest macOS
    signed: bool = False  # macOS


def read(content: bytes) -> Binary:
    """Raises ValueError for what is no shared library of 64 bits."""
    if content[:5] == b"\x7fELF\x02":
        return read_elf(content)
    if content[:4] == struct.pack("<I", 0xFEEDFACF):
        return read_mach(content)
    if content[:2] == b"MZ":
        return read_pe(content)
    raise ValueError("no shared library")


def text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()


def read_elf(content: bytes) -> Binary:
    (machine,) = struct.unpack_from("<H", content, 18)
    (headers,) = struct.unpack_from("<Q", content, 40)
    size, count, names_in = struct.unpack_from("<HHH", content, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", content, headers + k * size) for k in range(count)
    ]
    names = {text(content, sections[names_in][4] + x[0]): x for x in sections}
    strings = names[".dynstr"][4]
    exports, at = set(), names[".dynsym"][4]
    for k in range(names[".dynsym"][5] // 24):
        name, _, _, section = struct.unpack_from("<IBBH", content, at + 24 * k)
        if section:
            exports.add(text(content, strings + name))
    libraries, at = set(), names[".dynamic"][4]
    for k in range(names[".dynamic"][5] // 16):
        tag, value = struct.unpack_from("<QQ", content, at + 16 * k)
        if tag == 1:
            libraries.add(text(content, strings + value))
    table = content[strings : strings + names[".dynstr"][5]].decode().split("\0")
    versions = {x for x in table if x.startswith("GLIBC_")}
    sizes = {name: x[5] for name, x in names.items()}
    return Binary("linux", ELF_MACHINES[machine], exports, libraries, sizes, versions)


def read_mach(content: bytes) -> Binary:
    machine, _, kind, count = struct.unpack_from("<IIII", content, 4)
    if kind != 6:
        raise ValueError("no dylib")
    exports, libraries, sections, versions = set[str](), set[str](), dict[str, int](), set[str]()
    signed, at = False, 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", content, at)
        if command == SEGMENT:
            (inside,) = struct.unpack_from("<I", content, at + 64)
            for k in range(inside):
                begin = at + 72 + 80 * k
                name = content[begin : begin + 16].rstrip(b"\0").decode()
                sections[name] = struct.unpack_from("<Q", content, begin + 40)[0]
        elif command == SYMTAB:
            symbols, number, strings, _ = struct.unpack_from("<IIII", content, at + 8)
            for k in range(number):
                name, kind, _ = struct.unpack_from("<IBB", content, symbols + 16 * k)
                if kind & 0xF == 0xF:  # external, and in a section
                    exports.add(text(content, strings + name).removeprefix("_"))
        elif command == LOAD_DYLIB:
            libraries.add(text(content, at + struct.unpack_from("<I", content, at + 8)[0]))
        elif command == BUILD_VERSION:
            _, oldest = struct.unpack_from("<II", content, at + 8)
            versions.add(f"{oldest >> 16}.{oldest >> 8 & 255}")
        signed |= command == CODE_SIGNATURE
        at += size
    own = MACH_MACHINES[machine]
    return Binary("darwin", own, exports, libraries, sections, versions, signed)


def read_pe(content: bytes) -> Binary:
    (start,) = struct.unpack_from("<I", content, 60)
    machine, count = struct.unpack_from("<HH", content, start + 4)
    (optional,) = struct.unpack_from("<H", content, start + 20)
    directories = struct.unpack_from("<IIII", content, start + 24 + 112)  # exports, imports
    headers = start + 24 + optional
    sections = [struct.unpack_from("<8sIIII", content, headers + 40 * k) for k in range(count)]

    def place(address: int) -> int:
        """Where in the file something is that is loaded to an address."""
        for _, size, begin, stored, at in sections:
            if begin <= address < begin + max(size, stored):
                return at + address - begin
        raise ValueError(f"{address:x} is in no section")

    table = place(directories[0])
    (number,) = struct.unpack_from("<I", content, table + 24)
    (names,) = struct.unpack_from("<I", content, table + 32)
    addresses = struct.unpack_from(f"<{number}I", content, place(names))
    libraries, at = set(), place(directories[2])
    while name := struct.unpack_from("<I", content, at + 12)[0]:
        libraries.add(text(content, place(name)))
        at += 20
    sizes = {name.rstrip(b"\0").decode(): size for name, size, *_ in sections}
    exports = {text(content, place(x)) for x in addresses}
    return Binary("win32", PE_MACHINES[machine], exports, libraries, sizes, set())
