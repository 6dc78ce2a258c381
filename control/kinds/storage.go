package kinds

import (
	storageapi "k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
)

func storageRows() []Row {
	return []Row{{
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
