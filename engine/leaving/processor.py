"""What a node's processor can do, and whether another may take over a process that has used it.

A program asks the processor once, as a rule when it starts, and remembers the answer: a node that lacks anything that the home
has would end it by SIGILL somewhere. What it saves of its registers (XSAVE) has to be the same as well, not only no less: the
frame of a signal handler that began there is returned from here, and a kernel that finds it longer than its own restores the
oldest registers alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernel_helpers.common import library

CPUINFO = Path("/proc/cpuinfo")
NAMED = 6
"""So many flags that are missing are named."""
FLAG = re.compile(r"[0-9a-z_.]{1,40}")
_MOST = 2000
REQUIRED = ("rdtscp", "sse4_2")
"""Flags of the instructions that kernel_helpers executes without asking: rdtscp (link/home), crc32 (pages/stream.c)."""

# Flags of /proc/cpuinfo that no program's instructions depend on; whatever is not named here, also what newer kernels report,
# the target must have. See arch/x86/include/asm/cpufeatures.h.
_OF_THE_KERNEL = """
vme de pse msr pae mce apic mtrr pge mca pat pse36 pn dts acpi ss tm ia64 pbe mp nx pdpe1gb up
dtes64 monitor ds_cpl vmx smx est tm2 cid sdbg xtpr pdcm pcid dca x2apic tsc_deadline_timer hypervisor
svm extapic cr8_legacy osvw ibs skinit wdt nodeid_msr topoext perfctr_core perfctr_nb bpext ptsc perfctr_llc cmp_legacy
ida arat pln pts dtherm hwp hwp_notify hwp_act_window hwp_epp hwp_pkg_req hfi epb cpb hw_pstate proc_feedback cppc
npt lbrv svm_lock nrip_save tsc_scale vmcb_clean flushbyasid decodeassists pausefilter pfthreshold avic v_vmsave_vmload vgif
x2avic v_spec_ctrl vnmi extlvt npts lvtoffset sme sev sev_es sev_snp debug_swap ibpb_brtype
tpr_shadow flexpriority ept vpid ept_ad vmmcall vmcall ept_x_only ept_5level ept_1gb
smep smap umip invpcid invpcid_single tsc_adjust cqm rdt_a cat_l2 cat_l3 cdp_l2 cdp_l3 mba smba bmec abmc
cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local intel_pt intel_ppin amd_ppin arch_lbr lbr_v2 amd_lbr_v2 amd_lbr_pmc_freeze
perfmon_v2 sgx sgx_lc tme pconfig mktme la57 xsaves split_lock_detect bus_lock_detect bus_lock_threshold
pti ibrs ibpb stibp ibrs_enhanced ssbd virt_ssbd amd_ssbd amd_ibrs amd_ibpb amd_stibp amd_stibp_always_on amd_psfd
md_clear flush_l1d arch_capabilities core_capabilities tsx_force_abort srbds_ctrl spec_ctrl intel_stibp retpoline rsb_ctxsw
overflow_recov succor smca wbnoinvd irperf xsaveerptr fred lkgs wrmsrns lam ibt cpuid_fault dtes ptscd acc_power amd_hetero_cores
"""
# Those that say how fast something is, how a clock behaves or what the kernel makes of it, not whether an instruction is there.
_HINTS = """
rep_good erms fsrm fzrm fsrs fsrc misalignsse constant_tsc nonstop_tsc nonstop_tsc_s3 tsc_reliable tsc_known_freq art
xtopology cpuid nopl arch_perfmon pebs bts aperfmperf rapl amd_dcm extd_apicid ht zero_fcs_fds fdp_excptn_only
"""
IGNORED = frozenset((_OF_THE_KERNEL + _HINTS).split())


@dataclass(frozen=True)
class Processor:
    """flags: what of /proc/cpuinfo programs may depend on; xcr0, xsave: the extended state that is switched on, and its bytes."""

    vendor: str
    flags: frozenset[str]
    xcr0: int
    xsave: int

    def to_wire(self) -> dict[str, Any]:
        """Return the inverse of from_wire()."""
        return {"vendor": self.vendor, "flags": sorted(self.flags), "xcr0": self.xcr0, "xsave": self.xsave}

    @classmethod
    def from_wire(cls, reported: object) -> Processor:
        """Return what another node has reported about its own. Errors: ValueError."""
        if not isinstance(reported, dict):
            raise ValueError("it does not say what its processor can do")
        vendor, flags, xcr0, xsave = (reported.get(key) for key in ("vendor", "flags", "xcr0", "xsave"))
        if (
            not isinstance(vendor, str) or len(vendor) > 40 or not isinstance(flags, list) or len(flags) > _MOST
            or not all(isinstance(flag, str) and FLAG.fullmatch(flag) for flag in flags)
            or not isinstance(xcr0, int) or not isinstance(xsave, int)
        ):  # fmt: skip
            raise ValueError("what it says of its processor makes no sense")
        return cls(vendor, frozenset(flags), xcr0, xsave)

    @cached_property
    def digest(self) -> int:
        """A number of 32 bits, never 0, that differs where anything here does."""
        reported = f"{self.vendor} {' '.join(sorted(self.flags))} {self.xcr0} {self.xsave}"
        return int.from_bytes(hashlib.blake2b(reported.encode(), digest_size=4).digest()) or 1

    def restricted(self, flags: frozenset[str] | None) -> Processor:
        """Return the same with no other flags than these; a processor can be made to look older, never newer."""
        return self if flags is None else Processor(self.vendor, self.flags & flags, self.xcr0, self.xsave)


def own_processor(cpuinfo: Path = CPUINFO) -> Processor:
    """That of this machine: what all its processors have. Errors: OSError, FarhomeError."""
    vendor, flags = "", None
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = frozenset(value.split()) & flags if flags is not None else frozenset(value.split())
        elif name.strip() == "vendor_id":
            vendor = value.strip()
    xcr0, size = ctypes.c_uint64(), ctypes.c_uint32()
    library.load().processor_state(ctypes.byref(xcr0), ctypes.byref(size))
    return Processor(vendor, (flags or frozenset()) - IGNORED, xcr0.value, size.value)


def why_too_old(processor: Processor) -> str | None:
    """Return why farhome itself cannot run on this processor, in one sentence, or None."""
    missing = [flag for flag in REQUIRED if flag not in processor.flags]
    if not missing:
        return None
    return f"this machine's processor lacks {' and '.join(missing)}: farhome needs them (in a virtual machine, choose a newer cpu model)"


def why_unfit(node: str, there: Processor, home: Processor) -> str | None:
    """Return why a process of the home processor cannot go on at `node`, in one sentence, or None."""
    if there.vendor != home.vendor:
        return f"{node}'s processor is of another make ({there.vendor}, at home {home.vendor})"
    missing = sorted(home.flags - there.flags)
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        return f"{node}'s processor lacks {', '.join(missing[:NAMED])}{more}"
    if (there.xcr0, there.xsave) != (home.xcr0, home.xsave):
        return (
            f"{node}'s processor keeps other registers (XCR0 {there.xcr0:#x}, {there.xsave} bytes; "
            f"at home {home.xcr0:#x}, {home.xsave} bytes)"
        )
    return None
