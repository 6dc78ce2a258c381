package apis

import (
	"fmt"
	"mime"
	"sync"

	batchv1beta1 "k8s.io/api/batch/v1beta1"
	apiextensionsinstall "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	appsinstall "k8s.io/kubernetes/pkg/apis/apps/install"
	autoscalinginstall "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	batchinstall "k8s.io/kubernetes/pkg/apis/batch/install"
	coreinstall "k8s.io/kubernetes/pkg/apis/core/install"
	extensionsinstall "k8s.io/kubernetes/pkg/apis/extensions/install"
	networkinginstall "k8s.io/kubernetes/pkg/apis/networking/install"
	nodeinstall "k8s.io/kubernetes/pkg/apis/node/install"
	policyinstall "k8s.io/kubernetes/pkg/apis/policy/install"
	rbacinstall "k8s.io/kubernetes/pkg/apis/rbac/install"
	schedulinginstall "k8s.io/kubernetes/pkg/apis/scheduling/install"
)

// conversions are the types of all versions, and how they are encoded.
type conversions struct {
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
}

// types are made at the first request that needs them. The scheme is not the one that serves: there, a version without
// storage would be in the way.
var types = sync.OnceValue(func() conversions {
	s := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme){
		coreinstall.Install, autoscalinginstall.Install, appsinstall.Install, extensionsinstall.Install, batchinstall.Install,
		networkinginstall.Install, nodeinstall.Install, rbacinstall.Install, schedulinginstall.Install, policyinstall.Install,
		apiextensionsinstall.Install,
	} {
		install(s)
	}
	// batch/v2alpha1 had the fields of v1beta1; its own types are gone.
	v2alpha1 := gv("batch/v2alpha1")
	s.AddKnownTypes(v2alpha1, &batchv1beta1.CronJob{}, &batchv1beta1.CronJobList{})
	metav1.AddToGroupVersion(s, v2alpha1)
	return conversions{scheme: s, codecs: serializer.NewCodecFactory(s)}
})

// encode returns o as JSON of version to.
func (c conversions) encode(o runtime.Object, to schema.GroupVersion) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(c.codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, fmt.Errorf("no serializer of %s", runtime.ContentTypeJSON)
	}
	return runtime.Encode(c.codecs.EncoderForVersion(info.Serializer, to), o)
}

// body is a request's body.
type body struct {
	data        []byte
	contentType string
}

// toServed returns an object in the old version as JSON of the served one, with the old version's defaults, and the
// fields that the old version does not have or that are given twice.
func (m *mapping) toServed(b body) (data []byte, unknown []error, err error) {
	c := types()
	media, _, err := mime.ParseMediaType(b.contentType)
	if err != nil {
		media = runtime.ContentTypeJSON
	}
	info, ok := runtime.SerializerInfoForMediaType(c.codecs.SupportedMediaTypes(), media)
	if !ok {
		return nil, nil, apierrors.NewGenericServerResponse(415, "", schema.GroupResource{}, "", "the body's type must be JSON, YAML or protobuf, not "+media, 0, false)
	}
	from := info.Serializer
	if info.StrictSerializer != nil {
		from = info.StrictSerializer
	}
	want := m.old.WithKind(m.kind.name)
	o, got, err := c.codecs.DecoderToVersion(from, runtime.InternalGroupVersioner).Decode(b.data, &want, nil)
	if strict, is := runtime.AsStrictDecodingError(err); is && o != nil {
		unknown, err = strict.Errors(), nil
	}
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", want.Kind, want.Version, want.Kind, err))
	}
	if *got != want {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the body is %s, and the path is of %s", got, want))
	}
	if m.kind.resource == customResources.resource {
		if o, err = completeDefinition(c.scheme, o); err != nil {
			return nil, nil, apierrors.NewBadRequest(err.Error())
		}
	}
	data, err = c.encode(o, m.served)
	return data, unknown, err
}

// toOld returns JSON of the served version as JSON of the old one, an object or a list.
func (m *mapping) toOld(data []byte) ([]byte, error) {
	c := types()
	o, err := runtime.Decode(c.codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	return c.encode(o, m.old)
}
