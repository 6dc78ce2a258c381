package kinds

import (
	api "k8s.io/kubernetes/pkg/apis/core"
	storageapi "k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
)

func storageRows() []Row {
	return []Row{{
		Resource: "persistentvolumes", Singular: "persistentvolume", Short: []string{"pv"},
		Types: typesOf[api.PersistentVolume, api.PersistentVolumeList](), Strategy: persistentvolume.Strategy,
		Views: status(persistentvolume.StatusStrategy), Attrs: persistentvolume.GetAttrs, ReturnDeleted: true,
	}, {
		Resource: "persistentvolumeclaims", Singular: "persistentvolumeclaim", Short: []string{"pvc"},
		Types: typesOf[api.PersistentVolumeClaim, api.PersistentVolumeClaimList](), Strategy: persistentvolumeclaim.Strategy,
		Views: status(persistentvolumeclaim.StatusStrategy), Attrs: persistentvolumeclaim.GetAttrs,
		ReturnDeleted: true, Hook: claimHook,
	}, {
		Group: storageapi.GroupName, Resource: "storageclasses", Singular: "storageclass", Short: []string{"sc"},
		Types: typesOf[storageapi.StorageClass, storageapi.StorageClassList](), Strategy: storageclass.Strategy, ReturnDeleted: true,
	}, {
		Group: storageapi.GroupName, Resource: "volumeattachments", Singular: "volumeattachment",
		Types: typesOf[storageapi.VolumeAttachment, storageapi.VolumeAttachmentList](), Strategy: volumeattachment.Strategy,
		Views: status(volumeattachment.StatusStrategy), ReturnDeleted: true,
	}, {
		Group: storageapi.GroupName, Resource: "volumeattributesclasses", Singular: "volumeattributesclass", Short: []string{"vac"},
		Types:    typesOf[storageapi.VolumeAttributesClass, storageapi.VolumeAttributesClassList](),
		Strategy: volumeattributesclass.Strategy, ReturnDeleted: true,
	}, {
		Group: storageapi.GroupName, Resource: "csidrivers", Singular: "csidriver",
		Types: typesOf[storageapi.CSIDriver, storageapi.CSIDriverList](), Strategy: csidriver.Strategy, ReturnDeleted: true,
	}, {
		Group: storageapi.GroupName, Resource: "csinodes", Singular: "csinode",
		Types: typesOf[storageapi.CSINode, storageapi.CSINodeList](), Strategy: csinode.Strategy, ReturnDeleted: true,
	}, {
		Group: storageapi.GroupName, Resource: "csistoragecapacities", Singular: "csistoragecapacity", PlainColumns: true,
		Types: typesOf[storageapi.CSIStorageCapacity, storageapi.CSIStorageCapacityList](), Strategy: csistoragecapacity.Strategy,
	}}
}
