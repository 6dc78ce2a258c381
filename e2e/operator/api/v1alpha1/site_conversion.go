package v1alpha1

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	v1 "example.com/site-operator/api/v1"
)

// KeptAnnotation holds what v1 knows and this version does not, so that an
// object that was read and written in this version has lost nothing.
const KeptAnnotation = "web.example.com/v1"

type kept struct {
	Spec   v1.SiteSpec   `json:"spec"`
	Status v1.SiteStatus `json:"status"`
}

// ConvertTo makes a v1 Site of this one.
func (s *Site) ConvertTo(hub conversion.Hub) error {
	dst, ok := hub.(*v1.Site)
	if !ok {
		return fmt.Errorf("a %T is no v1 Site", hub)
	}
	dst.ObjectMeta = *s.ObjectMeta.DeepCopy()
	if text, found := dst.Annotations[KeptAnnotation]; found {
		var k kept
		if err := json.Unmarshal([]byte(text), &k); err != nil {
			return fmt.Errorf("annotation %s: %w", KeptAnnotation, err)
		}
		dst.Spec, dst.Status = k.Spec, k.Status
		delete(dst.Annotations, KeptAnnotation)
		if len(dst.Annotations) == 0 {
			dst.Annotations = nil
		}
	}
	dst.Spec.Image, dst.Spec.Replicas = s.Spec.Image, s.Spec.Size
	dst.Spec.Message, dst.Spec.Host = s.Spec.Text, s.Spec.Host
	return nil
}

// ConvertFrom makes this Site of a v1 one.
func (s *Site) ConvertFrom(hub conversion.Hub) error {
	src, ok := hub.(*v1.Site)
	if !ok {
		return fmt.Errorf("a %T is no v1 Site", hub)
	}
	text, err := json.Marshal(kept{Spec: src.Spec, Status: src.Status})
	if err != nil {
		return err
	}
	s.ObjectMeta = *src.ObjectMeta.DeepCopy()
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[KeptAnnotation] = string(text)
	s.Spec = SiteSpec{Image: src.Spec.Image, Size: src.Spec.Replicas, Text: src.Spec.Message, Host: src.Spec.Host}
	s.Status = SiteStatus{Ready: meta.IsStatusConditionTrue(src.Status.Conditions, v1.ConditionAvailable)}
	return nil
}
