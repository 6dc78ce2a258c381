package admission

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// DefaultTolerationSeconds lets pods stay for a while on a node that is not ready. It replaces upstream's plugin of
// that name, which reads its figure from variables that only flags of the process can set.
const tolerateName = "DefaultTolerationSeconds"

const defaultTolerationSeconds = 300

type tolerate struct {
	*admission.Handler
	seconds int64
}

func (b *builder) registerTolerate(plugins *admission.Plugins) {
	seconds := int64(defaultTolerationSeconds)
	if b.cfg.TolerationSeconds != nil {
		seconds = *b.cfg.TolerationSeconds
	}
	plugins.Register(tolerateName, func(io.Reader) (admission.Interface, error) {
		return tolerate{admission.NewHandler(admission.Create, admission.Update), seconds}, nil
	})
}

// Admit implements admission.MutationInterface.
func (t tolerate) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*api.Pod)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if toleratesKey(pod.Spec.Tolerations, key) {
			continue
		}
		seconds := t.seconds
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, api.Toleration{
			Key: key, Operator: api.TolerationOpExists, Effect: api.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
	return nil
}

// toleratesKey reports whether the pod already has a toleration for the NoExecute taint.
func toleratesKey(all []api.Toleration, key string) bool {
	for i := range all {
		t := &all[i]
		if (t.Key == key || t.Key == "") && (t.Effect == api.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
