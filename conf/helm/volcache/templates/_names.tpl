{{- define "volcache.instance" -}}
{app.kubernetes.io/name: volcache, app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: instance}
{{- end }}
{{- define "volcache.nginx" -}}
{app.kubernetes.io/name: volcache, app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: nginx}
{{- end }}
{{- define "volcache.where" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}
