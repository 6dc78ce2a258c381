package attachdetach

import (
	"crypto/sha256"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// attachmentName is the name of the VolumeAttachment for a volume and a node; nodes and drivers know it.
func attachmentName(s *v1.CSIPersistentVolumeSource, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(s.VolumeHandle+s.Driver+node)))
}

// inUseName is what a node calls a volume in its status.
func inUseName(s *v1.CSIPersistentVolumeSource) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + s.Driver + "^" + s.VolumeHandle)
}
