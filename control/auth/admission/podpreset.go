package admission

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/warning"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/balsahq/balsa/control/auth/listers"
	"github.com/balsahq/balsa/control/legacy/presets"
)

// PodPreset merges the PodPresets of a namespace into its new pods, and refuses PodPresets that would make pods
// invalid. Kubernetes had this plugin until v1.19, in this place of the order.
const podPresetName = "PodPreset"

type podPreset struct {
	*admission.Handler
	stored *listers.Indexer
	// events returns the recorder; it is called for the first event.
	events func() record.EventRecorder
}

// withPresets adds the plugin to the order if the cluster uses PodPresets.
func (b *builder) withPresets() []string {
	if !b.cfg.PodPresets {
		return order
	}
	return slices.Insert(slices.Clone(order), slices.Index(order, lifecycle.PluginName)+1, podPresetName)
}

func (b *builder) registerPodPreset(plugins *admission.Plugins) {
	plugins.Register(podPresetName, func(io.Reader) (admission.Interface, error) {
		return &podPreset{
			Handler: admission.NewHandler(admission.Create, admission.Update),
			stored:  b.cfg.Live.Fresh(presets.Resource.GroupResource()),
			events:  sync.OnceValue(b.recorder),
		}, nil
	})
}

// recorder starts a writer of events that runs until the chain is stopped; equal events are merged.
func (b *builder) recorder() record.EventRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(b.ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: b.cfg.Client.CoreV1().Events("")})
	return broadcaster.NewRecorder(legacyscheme.Scheme, corev1.EventSource{Component: "podpreset-admission"})
}

// Admit implements admission.MutationInterface.
func (p *podPreset) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*api.Pod)
	if !ok || a.GetSubresource() != "" || a.GetOperation() != admission.Create || !presets.Wanted(pod) {
		return nil
	}
	chosen, err := p.chosen(a.GetNamespace(), pod.Labels)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	conflicts, err := presets.Apply(pod, chosen)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	for _, c := range conflicts {
		warning.AddWarning(ctx, "", fmt.Sprintf("no PodPreset is applied: PodPreset %s: %s", c.Preset.Name, c.Reason))
		if !a.IsDryRun() {
			name := pod.Name
			if name == "" {
				name = pod.GenerateName
			}
			p.events().Eventf(&corev1.ObjectReference{
				APIVersion: presets.Kind.GroupVersion().String(), Kind: presets.Kind.Kind,
				Namespace: c.Preset.Namespace, Name: c.Preset.Name, UID: c.Preset.UID, ResourceVersion: c.Preset.ResourceVersion,
			}, corev1.EventTypeWarning, "Conflict", "pod %s was created without PodPresets: %s", name, c.Reason)
		}
	}
	return nil
}

// chosen returns the presets that select these labels, sorted by name.
func (p *podPreset) chosen(namespace string, labels map[string]string) (out []*presets.PodPreset, failed error) {
	p.stored.EachVersion(namespace, func(key string, value []byte, revision int64) bool {
		preset, err := presets.Decode(value)
		selected := false
		if err == nil {
			selected, err = preset.Selects(labels)
		}
		if err != nil {
			failed = fmt.Errorf("PodPreset %s cannot be used: %w; correct or delete it", path.Base(key), err)
			return false
		}
		if selected {
			preset.ResourceVersion = strconv.FormatInt(revision, 10)
			out = append(out, preset)
		}
		return true
	})
	return out, failed
}

// Validate implements admission.ValidationInterface.
func (p *podPreset) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return looked(a, presets.Kind, presets.Resource, func(text []byte) (field.ErrorList, error) {
		preset, err := presets.Decode(text)
		if err != nil {
			return nil, err
		}
		return presets.Validate(preset), nil
	})
}
