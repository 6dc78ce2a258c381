package node

import (
	"runtime"
	"testing"
)

func TestANodeSaysWhatItIs(t *testing.T) {
	a := &Agent{cfg: Config{Version: "v1.36.3"}}
	i := a.nodeInfo(health{RuntimeName: "containerd", RuntimeVers: "v2.4.2"})
	for field, got := range map[string][2]string{
		"KernelVersion": {i.KernelVersion, readLine("/proc/sys/kernel/osrelease")}, "BootID": {i.BootID, readLine("/proc/sys/kernel/random/boot_id")},
		"MachineID": {i.MachineID, readLine("/etc/machine-id")}, "Architecture": {i.Architecture, runtime.GOARCH}, "OperatingSystem": {i.OperatingSystem, "linux"},
		"KubeletVersion": {i.KubeletVersion, "v1.36.3"}, "ContainerRuntimeVersion": {i.ContainerRuntimeVersion, "containerd://2.4.2"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %q, want %q", field, got[0], got[1])
		}
	}
	if i.SystemUUID == "" && i.MachineID != "" || i.OSImage == "" {
		t.Errorf("SystemUUID %q, OSImage %q", i.SystemUUID, i.OSImage)
	}
}
