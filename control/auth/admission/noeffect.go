package admission

import (
	"context"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"github.com/balsahq/balsa/control/fields"
)

// NoEffect refuses objects that set fields without effect, or warns the client, according to the rules of
// control/fields. In an update only newly set fields count, so that stored objects can be changed. It runs after the
// plugins that change objects, and before strategies drop fields whose feature gates are off.
const noEffectName = "NoEffect"

type noEffect struct{ *admission.Handler }

func registerNoEffect(plugins *admission.Plugins) {
	plugins.Register(noEffectName, func(io.Reader) (admission.Interface, error) {
		return noEffect{admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

// Admit implements admission.MutationInterface; it changes nothing.
func (noEffect) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	found, err := judge(a)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	var refused field.ErrorList
	for _, f := range found {
		if f.Does == fields.Refused {
			refused = append(refused, field.Forbidden(field.NewPath(f.Field), "has no effect here: "+f.Says))
			continue
		}
		warning.AddWarning(ctx, "", f.String())
	}
	if len(refused) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), refused)
}

func judge(a admission.Attributes) ([]fields.Finding, error) {
	if a.GetObject() == nil {
		return nil, nil
	}
	switch a.GetSubresource() {
	case "", "ephemeralcontainers":
		return fields.Judge(a.GetObject(), a.GetOldObject())
	}
	return nil, nil
}
